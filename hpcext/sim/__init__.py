"""The simulator: the same engine on a virtual clock, with simulated physics."""
