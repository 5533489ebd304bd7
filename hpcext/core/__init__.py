"""The engine and its values: no I/O, no clock, no thread, no unseeded randomness.

``Engine.step(now_s, facts)`` returns actions, and the time at which to call it again. The manager,
the simulator and a recovery call it with the same facts, so they decide alike.

The state:

- ``values/`` is the vocabulary. A job is what was asked (``Request``), what is so and was tried
  (``Job``), and what its current attempt does (``Job.run``, gone with the attempt).
- ``world.py`` has the moves of jobs, ``apply/`` the effect of each kind of fact (``facts.py``),
  ``carrying_out.py`` the effect of an action.
- ``history/`` has the records of jobs, and an account of the nodes' time, which an observer of the
  steps keeps. ``changes.py`` says what changed last, so that observers cost what changed.

The decision:

- The engine asks a question, a numbered snapshot (``Engine.wants``). A target that fits becomes the
  goals of the jobs; another is refused, and the old goals stay. Of one that comes late, what has
  become impossible is left out (``decisions.py``). What is to stop is stopped without a question.
- ``estimate.py`` keeps what a job states and reports, observations alone; what policies believe of
  it is made in :mod:`hpcext.scaling.estimator`.
- ``reconcile.py`` compares goals with what is held, and returns the actions that are safe now.
  Nothing starts on a GPU that is held, that is, not acknowledged free.

The rules for single events: changes of size in place (``rescaling.py``), requests that have to wait
(``deferred.py``), trainings that cannot save, and what is lost (``saving.py``), that hang
(``silence.py``), that are behind in a sweep (``trials.py``), nodes on which attempts fail
(``suspicion.py``) or that are gone (``reach.py``), and the words for all of it (``reasons.py``).
"""
