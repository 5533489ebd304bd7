"""Traces of machines: when their nodes were idle, and which jobs were submitted."""
