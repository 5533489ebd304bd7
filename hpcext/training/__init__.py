"""Sessions that a training script imports, which stop, save and resume it."""
