"""Checks of what works for a user on a machine, what does not, and what to do about it."""
