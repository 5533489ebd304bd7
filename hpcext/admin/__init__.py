"""What an administrator does: put the hooks of a batch system in place, and take them out again."""
