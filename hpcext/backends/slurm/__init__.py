"""Pilots on Slurm: steps and scripts, the job, tickets, suspendable jobs."""
