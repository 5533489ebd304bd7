"""Share GPUs among deep-learning jobs inside a batch system without losing work."""

__version__ = "0.2.0"
