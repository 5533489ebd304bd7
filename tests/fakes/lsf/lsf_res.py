"""Contract engine of LSF, written from the vendor's documentation: what is above a job's shell.

Run as ``python -I -S lsf_res.py -d DIRECTORY SHELL FILE``, in a process group of its own, with the
signals blocked that it hears and outlives.
"""

from __future__ import annotations

import os
import signal
import sys

HEARD = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


def main() -> int:
    """Run the shell; its exit value, as LSF has it."""
    for signum in HEARD:
        signal.signal(signum, lambda *_: None)
    pid = os.fork()
    if pid == 0:
        for signum in (*HEARD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execv(sys.argv[3], sys.argv[3:])
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    value = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return value if value >= 0 else 128 - value


if __name__ == "__main__":
    os._exit(main())
