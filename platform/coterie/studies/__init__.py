"""Studies: many runs as one command, planned, trained as processes, and reported on."""
