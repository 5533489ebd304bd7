"""The read-only web page of a user's pilots and harvesters.

``document.py`` makes a document of what :mod:`hpcext.manager.views.reading` reads, ``page.py``
makes pages of that, and ``server.py`` serves them, on loopback or behind the proxy of Open
OnDemand. Connections are few and short (``bounded.py``), as those of :mod:`hpcext.cli.metrics` are.
"""
