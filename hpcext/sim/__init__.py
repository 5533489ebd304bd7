"""The simulator: the same engine on a virtual clock, with simulated physics.

It is a driver like the manager (``replay/``): a heap of events in place of a clock, and an executor
whose processes are arithmetic. Physics (``replay/physics.py``: true speeds, costs, faults) and
estimates are different objects; policies see what jobs state and report.

- ``traces/`` and ``replay/sources.py`` say which nodes there are: a machine, idle nodes of a trace,
  or the holes of a main queue (``replay/mainqueue.py``). ``workloads/`` says which jobs, and
  ``pilots/recording.py`` has those of a pilot that ran.
- ``replay/run.py`` streams both through an engine. ``ledger.py`` counts what each job had, and
  ``recorder.py`` keeps what ``evaluate/outcome.py`` says of a run.
- ``evaluate/`` measures: an equal part of the machine (``fair.py``), nodes that stay
  (``ideal.py``), what no schedule beats (``bounds.py``, ``clairvoyant.py``), and how far
  predictions of nodes came true (``calibration.py``). ``report/`` makes pages and files of it.
"""
