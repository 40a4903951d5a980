"""What a run leaves: saved models, how to load them, and assignments of new samples."""
