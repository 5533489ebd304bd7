"""Places counts of GPUs on nodes, and deals out the seats of shared GPUs.

``divide.py`` is the way from counts to a target that policies share: ``candidates.py`` says who may
be given GPUs, ``place.py`` finds the nodes, ``leftover.py`` gives what is left to jobs that have
none. ``availability.py`` says when there will be room, for policies that backfill and for the
simulated main queue. ``seats.py`` deals out the seats of GPUs that jobs share through MPS, beside
any policy, which sees neither.
"""
