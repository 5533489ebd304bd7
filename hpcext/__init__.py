"""Share GPUs among deep-learning jobs inside a batch system, and lose no work doing it."""

__version__ = "0.1.0"
