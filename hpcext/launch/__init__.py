"""What is started on a node. Standard library only: it must start fast, with any Python."""
