"""The history of jobs and nodes: records, losses, node-seconds, and the ages of nodes."""
