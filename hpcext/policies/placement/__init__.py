"""Places counts of GPUs on nodes, and deals out the seats of shared GPUs."""
