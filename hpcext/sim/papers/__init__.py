"""The papers' experiments on the simulator, and what the papers say came out."""
