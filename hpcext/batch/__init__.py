"""Clients of the batch systems: a query is a command (argv) and a parser (text → values)."""
