"""A broker on a virtual clock: its decisions in a simulation of what several users would have."""
