"""What command lines share: arguments, composition, help, exit codes."""
