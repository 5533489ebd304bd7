"""Jobs to simulate: read from files, or made up."""
