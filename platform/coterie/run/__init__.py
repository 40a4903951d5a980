"""One whole run, from its config to its files."""
