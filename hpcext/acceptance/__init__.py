"""One acceptance run for any site: trainings of its own go through all that may befall a job.

Run on the real batch system after an installation or an upgrade, by ``hpcext-admin accept``. What
it says rests on accounts that its trainings write themselves (``training.py``, ``account.py``), and
on the batch system's own word. Scenarios are small functions, a file for each kind (``verbs.py``,
``preemption.py``, ``arrays.py``, ...); they describe both systems, and what differs is a class of
each (``on_slurm.py``, ``on_lsf.py``). ``suite.py`` is the table of them.
"""
