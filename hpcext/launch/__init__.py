"""Programs that are started on nodes: standard library only, as they must start fast anywhere.

``supervise.py`` runs each attempt, under every executor, or several of a job whose processes stay
(``supervision.py``). Its supervisor (``supervisor.py``) is a sub-reaper: it knows when the whole
process tree is empty, and says so in ``exit.json``. What an event asks of it, a pure state machine
says (``attempt_state.py``, with a figure; its events, facts and effects are in
``attempt_events.py``). The messages between manager, supervisor and training are signals and small
files that are renamed into place.

- A command that saves by its own means is asked, and believed, as its job states (``native.py``).
  Which files are its own, and whether one is whole: ``own_checkpoints.py``, ``wholeness.py``.
- A command that saves nothing is suspended as it is: ``transparent/``.
- A command in a container: ``container.py``. One of a shell script: ``script.py``.
- ``ranks.py`` is the torchrun of hpcext: it runs a command once for each GPU, and changes their
  number while they train; ``other_node.py`` does so on nodes that are not the first.
- ``nursery.py`` forks supervisors; ``preload.py`` has imported what a command imports, and
  ``run_here.py`` runs the command, or each of its ranks, there as if it had been executed. Who
  starts supervisors asks for that by ``nurseries.py``; ``words.py`` tells what a command runs.
- ``agent.py`` holds a lease, ``spread.py`` starts the supervisors of an attempt on several hosts of
  LSF, ``sweep.py`` ends what is left of one.
- ``mps.py`` starts and ends NVIDIA's daemon; ``gpu_faults.py`` asks its driver why an attempt
  failed; ``stacks.py`` shows where one hangs; ``trackers.py`` has its attempts continue one run.
"""
