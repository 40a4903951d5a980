"""What a run leaves: saved models, loading, assignments."""
