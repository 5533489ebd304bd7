"""The command line: one module per command, one that prints."""
