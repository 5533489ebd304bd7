"""Simulations of real pilots and harvesters, from their own recordings."""
