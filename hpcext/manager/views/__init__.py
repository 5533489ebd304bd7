"""Reads a pilot or a harvester from its journal, and makes documents of what it says."""
