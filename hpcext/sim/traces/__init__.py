"""What machines did: when their nodes were idle, and which jobs were submitted to them."""
