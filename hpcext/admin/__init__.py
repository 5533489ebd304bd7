"""The administrator's side: install the hooks of a batch system, and remove them again."""
