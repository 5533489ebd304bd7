"""The program that hpcext-batch runs before a suspendable script starts, to prepare its pilot.

It is a module of its own because :mod:`hpcext.cli.main` is slow to import. Its arguments are
``COMMAND --lead SECONDS -- SCRIPT ARGUMENT...``. The last line on standard error is the program
that hpcext-batch becomes, if the exit status is 0; otherwise it is the reason why the script runs
without hpcext.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hpcext.allocation import Allocation
from hpcext.backends.slurm.suspend import SlurmSuspendable
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError
from hpcext.manager import suspendable
from hpcext.text import clean


def main(words: Sequence[str]) -> int:
    """Prepare the pilot of this job; return the exit status.

    Parameters
    ----------
    words : sequence of str
        The arguments, in the fixed order above.
    """
    command, lead, script = words[0], words[2], words[4:]
    here = Allocation.from_environ()
    if here is None:
        return _say("this is not the batch script of a Slurm job", 2)
    try:
        job = SlurmSuspendable(here, script)
        lead_s = suspendable.lead_of(lead)
        settings = load_settings()
        becomes = suspendable.prepare(job, lead_s, settings, hpcext=[command])
        return _say(str(becomes), 0)
    except HpcextError as error:
        return _say(clean(str(error)), error.exit_status)
    except OSError as error:
        return _say(clean(f"{error.filename or 'state_dir'}: {error.strerror}"), 1)


def _say(line: str, status: int) -> int:
    sys.stderr.write(f"{line}\n")
    return status
