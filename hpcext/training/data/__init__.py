"""The data of a training: the order of samples, whole batches, and loaders that resume."""
