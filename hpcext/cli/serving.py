"""Servers of the command line, which answer in threads until they are told to end."""

from __future__ import annotations

import signal
import threading
from socketserver import BaseServer

from hpcext.cli.output import Output

STOP = (signal.SIGINT, signal.SIGTERM)


def serve(server: BaseServer, address: str, note: str, out: Output) -> None:
    """Run a server until a signal ends it; print its address, and a note.

    The signals are blocked first, so that no thread takes them. Blocked signals also arrive if a
    shell has started us in the background, where Ctrl-C is ignored.

    Parameters
    ----------
    server : socketserver.BaseServer
    address : str
        The result, on stdout.
    note : str
        A remark, on stderr.
    out : Output
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    out.line(address)
    out.note(note)
    signal.sigwait(STOP)
    server.shutdown()
