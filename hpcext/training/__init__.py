"""Sessions that a training script imports, which stop, save and resume it.

A session (``session.py``) is composed, not inherited (``composition.py``):

- A ``Coordinator`` owns the boundary between two steps: it hears the request, agrees with the other
  ranks, has checkpoints written, acknowledges, reports. The callbacks of Lightning and Transformers
  have the very same one, with the library's files (``library.py``); Keras's drives a session.
- ``loop.py`` knows the place in the data, ``succession.py`` that of a training among those of its
  process. A ``Framework`` says how ranks meet and what their state is.
- What else a session can do is a ``Feature`` with declared hooks (``feature.py``): changing its
  ranks in place (``resizing.py``; dead ones, ``others.py`` and ``torch/mending.py``), adapting its
  batch (``adapt/``), balancing unequal ranks (``balance/``; parts of the data, ``partitions.py``),
  sharding (``torch/sharding.py``; which rows go where when ranks change, ``redistribution.py``;
  copies that ranks have of each other's shards, ``torch/copies.py``).
- The ``Keeper`` of checkpoints (``checkpoint/keeper.py``) has rank 0 write the state; what each
  rank writes itself is the shards of that feature (``checkpoint/shards.py``).
- Where a framework's ranks cannot change in number, they meet as ``star.py`` says. Whatever
  connects nodes proves that it has the key of the attempt, and authenticates what it says
  (``keyed.py``); the services of rank 0 are behind a ``door.py``.
"""
