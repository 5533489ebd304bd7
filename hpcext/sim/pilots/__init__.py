"""Simulations of real pilots and harvesters, from their own recordings."""

BASELINE = "exclusive"
"""The policy under which each job has its nodes to itself."""
