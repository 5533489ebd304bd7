"""Models of the speed of jobs, and their estimation: pure numerics."""
