"""Checks of what works on a machine for a user, with advice on what does not.

``checks.py`` has the table of all checks. Each returns findings within a time limit
(``checkup.py``). What a check begins, its keeper ends, if need be after its death (``keeper.py``).
"""
