"""Clients of the batch systems: each query is a command (argv) and a parser (text → values)."""
