"""Pilots in a Jupyter notebook: begun, shown live, and changed from its cells.

It is one more way to give hpcext's commands: what a method does, and what it says, is what the
command of that name does and says. Nothing here needs IPython, and nothing else imports this.
"""

from __future__ import annotations

from typing import Any

from hpcext.notebook.pilot import Pilot

__all__ = ["Pilot", "load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Add ``%%hpcext_jobs`` to a notebook; ``%load_ext hpcext.notebook`` calls this.

    The cell is a job file, and the words after the name are options of ``hpcext run``.
    """
    shell.register_magic_function(Pilot.of_cell, "cell", "hpcext_jobs")
