"""The acceptance run: its trainings go through all that may happen to a job on a site.

``hpcext-admin accept`` runs it on the real batch system after an installation or an upgrade. Its
verdicts rest on accounts that the trainings write themselves (``training.py``, ``account.py``), and
on what the batch system says. Scenarios are functions, with a module for each kind (``verbs.py``,
``preemption.py``, ``arrays.py``, ...), the same for Slurm and LSF; what differs between these is in
a class for each (``on_slurm.py``, ``on_lsf.py``). ``suite.py`` has the table of scenarios.
"""
