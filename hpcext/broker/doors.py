"""The doors that the settings of a broker name; which kinds there are, only this says."""

from __future__ import annotations

from hpcext.addresses import MungeAddress
from hpcext.broker.desk import Desk, Door
from hpcext.broker.drop import Drop
from hpcext.broker.identity import PeerCredentials
from hpcext.broker.remote import Remote
from hpcext.broker.server import Server
from hpcext.broker.settings import Settings


def doors(settings: Settings, desk: Desk) -> list[Door]:
    """Return all doors: the socket, and those for other hosts."""
    local = Server(settings.socket, PeerCredentials(), desk)
    far: list[Door] = [
        Remote(each, desk) if isinstance(each, MungeAddress) else Drop(each.directory, desk)
        for each in settings.listen
    ]
    # The socket last: who sees it can ask on all ways.
    return [*far, local]
