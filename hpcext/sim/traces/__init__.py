"""Traces of machines: the idle times of their nodes, and the submitted jobs."""
