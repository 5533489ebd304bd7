"""Executors, which carry actions out and turn what happens into facts: no loop, no decision.

An action is carried out once, however often it is given; a START that is given again adopts what
runs. ``base.py`` is what each of them is. Attempts have directories of their own (``attempt/``),
which ``attempts.py`` watches: on this machine (``local.py``), or on leases
(:mod:`hpcext.harvest.executor`). In a batch job, which has an end (``allocation.py``,
``walltime.py``), they run beside the manager (``on_node.py``) or as steps (``steps.py``; those of
Slurm and LSF are in :mod:`hpcext.backends`).

Once a manager has begun a few supervisors, one process forks the others, and one that has imported
a job's modules forks their commands (:mod:`hpcext.launch.nurseries`). A GPU that jobs share
through MPS is a node of its own, whose GPUs are seats (``seats.py``).
"""
