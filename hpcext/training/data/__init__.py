"""Feeds a training: the order of samples, whole batches, and loaders that begin in mid-epoch."""
