"""One run of a job's command, as its manager writes and reads it: a directory of files."""
