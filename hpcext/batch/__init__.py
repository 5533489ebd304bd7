"""Clients of the batch systems: each query is a command, and a parser of what it prints.

What is asked has the same words for each system: jobs (``jobs.py``), leases (``leasing.py``), and
what is known of a job by an answer, which may be nothing (``standing.py``). ``slurm/`` and ``lsf/``
have what their commands are asked and print; ``runner.py`` alone starts one. Which way an engine of
LSF's line has for a query, ``lsf/engine.py`` alone knows; ``lsf/probe.py`` asks it, once.

No pilot is run here: harvesters, the doctor and the site's installation need it, too.
"""
