"""What a training script imports: a session that stops, saves and resumes it."""
