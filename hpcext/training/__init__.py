"""Sessions that a training script imports: they stop, save and resume it."""
