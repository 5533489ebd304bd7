"""Pilots, tickets and suspendable jobs on a batch system; one folder for each system."""
