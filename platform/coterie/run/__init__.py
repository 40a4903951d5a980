"""One whole run: from its config to the files that it leaves."""
