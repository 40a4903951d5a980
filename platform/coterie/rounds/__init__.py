"""The round loop, without input or output."""
