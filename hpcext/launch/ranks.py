"""The launcher of ranks: it runs a command once per GPU of a job, and changes their number.

It does what torchrun does, and one thing more: when the manager gives the job other GPUs, new ranks
are started *beside* the ones that train, and only when they are ready does the group change
(:mod:`hpcext.rendezvous`). Nothing is restarted, nothing goes through the disk. A rank that dies
can be replaced in the same way, after the others have formed a group without it.

One launcher runs on each node of the job. The one of the first node leads
(:mod:`hpcext.launch.first_node`): it reads what the manager asks for, and answers. New ranks of
other nodes come with launchers of their own (:mod:`hpcext.launch.other_node`).

Run as ``python -I -S .../hpcext/launch/ranks.py RANKS[+REPLACE] COMMAND...``; RANKS is the number
on each node, or 0: one for each GPU of the attempt; REPLACE says how many that die are replaced.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":
    # With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from hpcext import documents, private, protocol
from hpcext.launch import stderr
from hpcext.launch.change import Request
from hpcext.launch.first_node import FirstNode
from hpcext.launch.other_node import OtherNode
from hpcext.rendezvous import SHARED, Rendezvous

USAGE = 2


def launch(
    argv: Sequence[str], per_node: int, environ: Mapping[str, str], *, replace: int | None = None
) -> int:
    """Run a command once per GPU.

    Parameters
    ----------
    argv, environ : sequence of str, Mapping[str, str]
    per_node : int
        The number of ranks on this node; 0: one for each GPU of the attempt, or one.
    replace : int, optional
        How many ranks that die are replaced, if the others can go on. By default those of lost
        nodes are, where nodes come and go, and no others.

    Returns
    -------
    int
        Exit code.
    """
    try:
        attempt = protocol.Attempt.from_environ(environ)
    except ValueError as error:
        stderr.say(error)
        return USAGE
    per_node = per_node or (attempt.num_gpus if attempt else 1)
    if attempt is not None and attempt.rendezvous:
        return _on_several(argv, per_node, attempt, replace)
    if attempt is not None and attempt.num_nodes > 1:
        stderr.say(
            f"launch: the job has {attempt.num_nodes} nodes, but HPCEXT_RENDEZVOUS does not say "
            "where their ranks meet"
        )
        return USAGE
    try:
        directory = Path(tempfile.mkdtemp(prefix="hpcext-ranks-"))
    except OSError as error:
        stderr.say(f"launch: no directory for the ranks to meet in: {error}")
        return os.EX_CANTCREAT
    try:
        place = Rendezvous(directory, replaces=bool(replace))
        return FirstNode(argv, (0,) * per_node, place, attempt, replace=replace or 0).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _on_several(
    argv: Sequence[str], per_node: int, attempt: protocol.Attempt, replace: int | None
) -> int:
    """Run this node's part of a job that has several nodes, or may get others."""
    directory = attempt.report_dir / SHARED
    host, _, _ = attempt.rendezvous.rpartition(":")
    # Nodes that the batch system may take back, with a notice as a rule, can be lost without one.
    place = Rendezvous(directory, host=host, replaces=attempt.notices and replace != 0)
    index = protocol.node_index()
    nodes = tuple(node for node in range(attempt.num_nodes) for _ in range(per_node))
    try:
        private.make(directory)
        if index == 0:
            return FirstNode(argv, nodes, place, attempt, replace=replace or 0).run()
        if index < attempt.num_nodes:
            return OtherNode(argv, nodes, place, attempt, index).run()
        request = Request.read(attempt)
        if request is None or index not in request.nodes:
            # The change that it was started for was given up.
            return 0
        joins = request.number
        return OtherNode(argv, request.nodes, place, attempt, index, joins=joins).run()
    except documents.UNFIT as error:
        stderr.say(f"launch: {error}")
        return USAGE


if __name__ == "__main__":
    per_node, said, losses = sys.argv[1].partition("+")
    replace = int(losses) if said else None
    code = launch(sys.argv[2:], int(per_node), protocol.environ(), replace=replace)
    stderr.flush()
    os._exit(code)
