"""Clients of the batch systems: each query is a command, and a parser of what it prints."""
