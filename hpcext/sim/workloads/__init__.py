"""Jobs to simulate, read from files or generated."""
