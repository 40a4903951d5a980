"""Entry points, each short."""
