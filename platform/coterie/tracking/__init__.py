"""What a run leaves behind and shows: its directory, metrics, trackers, terminal and summary."""
