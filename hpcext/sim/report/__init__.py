"""The report of simulated runs: one page that needs nothing else, and the figures behind it."""
