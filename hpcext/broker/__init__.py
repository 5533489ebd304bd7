"""The broker of a site: how many idle nodes the harvesters of all its users may have.

It is one more driver of an engine (``site.py``). The jobs are the trainers of all users, as
harvesters tell them (``harvesters.py``), and the executor is paper (``paper.py``), because leave is
no process. ``service.py`` looks at the partition, decides, and answers.

- The decision (``decision.py``) asks the site's policy for each harvester, on its part of the
  nodes, so that no user's claims reach another's part. ``division.py`` makes the parts, by weights,
  these times the batch system's fair share (``fair_share.py``), after what is reserved
  (``reservations.py``). ``by_class.py`` does that for each class of nodes (``classes.py``) after
  the other, for users with limits by class. ``entitlement.py`` says what weights entitle to if
  nodes could be divided, and ``rounding.py`` sees to it that whole nodes come to that over hours.
  ``handover.py`` says what harvesters are told of it.
- It is reached by ``doors.py``: a socket (``server.py``), a port with MUNGE (``remote.py``), a
  shared directory (``drop.py``). Each proves who asks (``identity.py``), and all lead to one
  ``desk.py``, which bounds what one user may ask (``gate.py``).
- ``alone.py`` keeps it the only one of its partition. ``reasons.py`` says why a part is no larger,
  ``view.py`` and ``metrics.py`` show what users have.
- ``simulated/`` is the very same decision as the policy of a simulated run.
"""
