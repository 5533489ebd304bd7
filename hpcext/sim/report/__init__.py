"""The report of simulated runs: one self-contained page, and the figures behind it."""
