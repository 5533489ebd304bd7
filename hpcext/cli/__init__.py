"""The command line: one module per command, and one that prints."""
