"""What is there and works for a user on a machine, what is not, and what to do about it."""
