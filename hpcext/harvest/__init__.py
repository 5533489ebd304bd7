"""Harvesting of idle nodes: leases that are taken, held and given back, and attempts on them.

A harvester is a pilot whose nodes are small preemptible jobs of a batch system. Its engine hears of
nodes that come and go, and no more: who gets what is the policy's decision, as everywhere.

- ``book.py`` has the leases. ``ground.py`` knows the nodes of the partition, ``leases.py`` says
  which to take, ``balance.py`` brings their number to what it should be, ``lease_jobs.py`` asks for
  them and sees them end. Nodes that were given up for a job are left alone until it begins
  (``given_up.py``).
- Beside harvesters of other users, which it sees in the queue (``neighbours.py``), ``shares.py``
  says how many it may have. Where the site has a broker, its word replaces that, and nothing else
  changes: ``site.py`` asks it once in each look, in the words of ``leave.py``, on one of the
  ``ways/``, and holds on or falls back while it is away. ``missing.py`` says why there is no lease.
- In each lease an agent (:mod:`hpcext.launch.agent`) starts the supervisors of an attempt's parts
  (``parts.py``), as ``executor.py`` asks it to by files, and gives the node back when it is wanted.
  If ranks cannot reach each other, agents are called; one that is silent is gone (``calls.py``).
- With ``--autoscale`` the book keeps as many nodes as are worth it
  (:mod:`hpcext.policies.autoscale`): a limit, and no second decision.
"""
