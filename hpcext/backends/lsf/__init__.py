"""Pilots on LSF: attempts on its hosts, the job, tickets, suspendable jobs."""
