"""Evaluates simulated runs: figures, comparisons, and bounds that no schedule beats."""
