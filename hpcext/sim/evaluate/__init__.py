"""The evaluation of simulated runs: figures, comparisons, and bounds on any schedule."""
