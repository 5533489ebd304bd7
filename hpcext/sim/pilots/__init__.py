"""Simulates pilots and harvesters that really ran, from their own recordings."""
