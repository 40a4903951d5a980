"""The whole run on disk, and back."""
