"""Transparent suspension: a process tree that saves nothing is suspended as it is.

Standard library only, as all that a supervisor imports.
"""
