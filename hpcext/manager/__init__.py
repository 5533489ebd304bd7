"""All that runs while jobs run: one driver, its journal, its spool, and the pilot made of them.

A pilot (``pilot.py``) is a directory (``directory.py``), a set of GPUs, an engine, and an executor.
Where its jobs run, ``places.py`` says: on this machine, in the batch job whose script the manager
is, or on leases. ``driver.py`` waits for something to happen, steps the engine, and acts on its
answer; ``decider.py`` has the policy asked in a process beside it, with a deadline.

- Every fact is in the journal before anything is done about it (``journal.py``,
  ``kept_worlds.py``).
- Other terminals ask through files (``spool.py``, ``inbox.py``, ``requests.py``) and wait for what
  comes of it (``waiting.py``). What they show are functions of the journal (``views/``; ``tail.py``
  reads only what was added), of the pilot that is meant (``choosing.py``).
- At the end of an allocation trainings are suspended and the job goes back into the queue; another
  manager of the same user has it begin (``requeued.py``).
- ``tickets.py`` and ``suspendable.py`` are the pilots behind the flags of ``sbatch`` and ``bsub``.
- What pilots leave goes by ``cleaning/`` and ``kept.py`` alone. Who is told of failures and of the
  end observes the engine as all do (``notifications.py``); a thread sends (``senders.py``).
"""
