"""What became of jobs and of the time of nodes: records, losses, and the ages of nodes."""
