"""The words between harvesters and the broker of their site.

A call is one line of JSON each way. The broker knows who asks by the way on which the line came
(:mod:`hpcext.harvest.ways`), so that no message says it. A message has no names, paths, arguments
or speeds of trainers: only the sizes in which each could use nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Union

import msgspec

from hpcext.core.errors import HpcextError

SOCKET: Final = Path("/run/hpcext-broker/socket")
"""Where a broker listens, unless a setting says otherwise: only root makes its directory."""

AUTO: Final = "auto"
NONE: Final = "none"

MOST_BYTES = 256 << 10
"""The longest line of a harvester."""

MOST_ANSWER_BYTES = 2 * MOST_BYTES
"""The longest line of a broker."""

MOST_TRAINERS = 256
"""The most trainers of one harvester that a broker hears of: the first of its queue."""

MOST_SIZES = 128
"""The most sizes of a trainer: of more, the largest and the smallest ones are said."""

MOST_NODES = 10_000
MOST_GPUS = 1024
MOST_FACTOR = 1e6
"""The largest weight or priority of a trainer: larger ones are said as this one."""

SCHEMA: Final = "hpcext.broker/1"

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)]
Size = Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS * MOST_NODES)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Trainer(_Message, frozen=True):
    """A trainer, as far as a broker hears of it.

    Attributes
    ----------
    number : int
        Differs from that of any other trainer of its harvester, and stays.
    sizes : tuple of int
        GPU counts, ascending: on each of its nodes where `nodes` is set, else in all.
    nodes : (int, int) or None
        The fewest and the most nodes that it runs on.
    weight : float
        Beside other trainers of the same user.
    priority : float
        The same.
    """

    number: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
    sizes: Annotated[tuple[Size, ...], msgspec.Meta(min_length=1, max_length=MOST_SIZES)]
    nodes: Union[tuple[Count, Count], None] = None  # noqa: UP007  (read at run time)
    weight: Annotated[float, msgspec.Meta(gt=0, le=MOST_FACTOR)] = 1.0
    priority: Annotated[float, msgspec.Meta(ge=-MOST_FACTOR, le=MOST_FACTOR)] = 0.0


class Ask(_Message, frozen=True, tag="ask"):
    """A harvester asks how many nodes it may have.

    Attributes
    ----------
    harvester : str
        The name of the jobs of its leases.
    partition : str
    gpus : int
        That it uses on each node, or slots.
    want : int
        The most nodes that its trainers can use together, and that it may take.
    trainers : tuple of Trainer
        In the order of its queue.
    """

    harvester: Annotated[
        str, msgspec.Meta(pattern=r"^hpcext-[A-Za-z0-9._-]{1,64}-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")
    ]
    partition: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    gpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]
    want: Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)]
    trainers: Annotated[tuple[Trainer, ...], msgspec.Meta(max_length=MOST_TRAINERS)] = ()
    schema: Literal["hpcext.broker/1"] = SCHEMA


class AskStatus(_Message, frozen=True, tag="status"):
    """Somebody asks what is going on: administrators see all users, others themselves."""

    schema: Literal["hpcext.broker/1"] = SCHEMA


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The broker's answer; later releases may say more.

    Attributes
    ----------
    nodes : int
        The most nodes that the harvester may have now.
    next : bool
        Whether the next node that becomes free should be its.
    claim : tuple of str
        Nodes that others have beyond what they may have: to be claimed first.
    keep : str
        Why nothing is decided now; the harvester keeps what it has, and takes nothing new.
    refused : str
        What is wrong with the message.
    elsewhere : bool
        The broker has nothing to do with this partition.
    of : int
        How many nodes are divided among all harvesters; 0: it does not say.
    less : str
        Why the harvester may have fewer than it wants; empty if it may have these.
    only : tuple of str or None
        Where the site has classes of nodes: the nodes that the harvester may have, and no others.
    """

    nodes: Annotated[int, msgspec.Meta(ge=0)] = 0
    next: bool = False
    claim: tuple[str, ...] = ()
    keep: str = ""
    refused: str = ""
    elsewhere: bool = False
    of: Annotated[int, msgspec.Meta(ge=0)] = 0
    less: str = ""
    only: Union[tuple[str, ...], None] = None  # noqa: UP007  (read at run time)


class BrokerError(HpcextError):
    """An error for a broker that cannot be asked, or that is not to be believed."""
