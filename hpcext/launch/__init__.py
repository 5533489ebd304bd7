"""Programs that are started on nodes: standard library only, as they must start fast anywhere."""
