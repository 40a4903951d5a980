"""The command line: compose a config, help texts, exit codes."""
