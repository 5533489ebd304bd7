"""What is known of a job's speed: pure numerics."""
