"""The engine and its values: no I/O, no clock, no thread, no unseeded randomness."""
