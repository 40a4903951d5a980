"""Studies: many runs as one command. Plan them, train them as processes, report on them."""
