"""Checks of what works on a machine for a user, with advice on what does not."""
