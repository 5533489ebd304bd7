"""The doors that the settings of a broker name; which kinds there are, only this says."""

from __future__ import annotations

from hpcext.addresses import Address, DropAddress, MungeAddress
from hpcext.broker.desk import Desk, Door
from hpcext.broker.drop import Drop
from hpcext.broker.identity import PeerCredentials
from hpcext.broker.remote import Remote
from hpcext.broker.server import Server
from hpcext.broker.settings import Settings


def doors(settings: Settings, desk: Desk) -> list[Door]:
    """Return all doors: the socket, and those for other hosts."""
    local = Server(settings.socket, PeerCredentials(), desk)
    return [local, *(_door(each, desk) for each in settings.listen)]


def _door(address: Address, desk: Desk) -> Door:
    if isinstance(address, MungeAddress):
        return Remote(address, desk)
    if isinstance(address, DropAddress):
        return Drop(address.directory, desk)
    return Server(address.path, PeerCredentials(), desk)
