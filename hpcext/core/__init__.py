"""Values and the engine. No I/O, no clock, no thread, no unseeded randomness."""
