"""``hpcext-admin accept``: test all of hpcext on the real batch system of a site."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hpcext import __version__, backends
from hpcext.acceptance import keeper, suite
from hpcext.acceptance.scenario import Result
from hpcext.acceptance.stage import RunTerms
from hpcext.acceptance.systems import NOUNS, System
from hpcext.checks import check_range
from hpcext.cli import main as cli
from hpcext.cli.output import Output
from hpcext.config import load_settings
from hpcext.core.errors import BatchError, InputError

AGE_S, SILENCE_S = 45, 60
_AGES, _SILENCES = (0, 300), (10, 90)
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "accept",
        help="test hpcext on the real batch system, with trainings of its own",
        description="For an ordinary user, after an installation or an upgrade.",
        epilog="example: hpcext-admin accept slurm --partition preemptible --above gpu",
    )
    parser.set_defaults(rest=())
    system = parser.add_subparsers(dest="system", metavar="SYSTEM", required=True)
    for key, noun in NOUNS.items():
        _add_system(system, key, noun)


def _add_system(commands: Any, key: str, noun: str) -> None:
    parser: cli.Parser = commands.add_parser(
        key,
        usage=f"hpcext-admin accept {key} --partition NAME [OPTION...] [-- OPTION...]",
        help=f"test it on {backends.title(key)}, from this machine",
        description=f"Uses at most {suite.MOST_HOSTS} hosts and takes at most 15 minutes.",
    )
    parser.epilog = f"{cli.EXAMPLE}{parser.prog} --partition preemptible"
    parser.add_argument("--partition", required=True, metavar="NAME", help=f"{noun} for its jobs")
    parser.add_argument(
        "--above",
        default="",
        metavar="NAME",
        help=f"{noun} whose jobs preempt those of --partition",
    )
    parser.add_argument(
        "--hosts",
        type=int,
        default=suite.MOST_HOSTS,
        help="largest number of hosts to use (default: %(default)s)",
    )
    parser.add_argument("--only", default="", metavar="NAME,...", help="run these scenarios only")
    parser.add_argument(
        "--age",
        type=int,
        default=AGE_S,
        metavar="SECONDS",
        help="age at which LSF's PIM knows all processes of a job (default: %(default)s)",
    )
    parser.add_argument(
        "--silence",
        type=int,
        default=SILENCE_S,
        metavar="SECONDS",
        help="how long the batch system is kept from answering (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=functools.partial(run, key))


def run(key: str, args: argparse.Namespace, out: Output) -> int:
    """Run the scenarios; return 0 if none of them failed.

    Parameters
    ----------
    key : str
        The name of the batch system.
    args : argparse.Namespace
    out : Output

    Returns
    -------
    int
        128 and the number of the signal, if one ended the run.

    Raises
    ------
    InputError
        An option is invalid, or the batch system cannot run the scenarios with these.
    """
    system = keeper.system_of(key)
    only = _check(system, args)
    try:
        release = system.release()
        hosts = suite.choose_hosts(system, args.partition, args.hosts)
        if args.above:
            suite.check_above(system, args.above, hosts)
    except BatchError as error:
        raise InputError(error.what, do=error.do) from None
    if os.geteuid() == 0:
        out.note("batch systems treat root differently: run this as an ordinary user")
    terms = RunTerms(args.partition, args.above, args.rest, args.age, args.silence, suite.MOST_S)
    began_s, began = time.time(), time.monotonic()
    named = [host.name for host in hosts]
    out.line(f"hpcext {__version__} on {release}, {args.partition}: {', '.join(named)}")
    with (
        _signals_recorded() as asked,
        suite.AcceptanceRun(system, terms, hosts, load_settings().state_dir, only) as it,
    ):
        results = _run_scenarios(it, asked, out)
    _show(results, out)
    passed = all(result.verdict != "failed" for result in results)
    if args.json:
        document: dict[str, Any] = {
            "schema": "hpcext.accept/1",
            "hpcext": __version__,
            "system": key,
            "release": release,
            "partition": args.partition,
            "above": args.above or None,
            "hosts": named,
            "started_at": began_s,
            "took_s": time.monotonic() - began,
            "whole": not asked.signum,
            "accepted": passed and not asked.signum,
            "scenarios": [result._asdict() for result in results],
        }
        out.document(document)
    if asked.signum:
        return 128 + asked.signum
    return 0 if passed else 1


def _check(system: System, args: argparse.Namespace) -> list[str]:
    """Refuse invalid options before anything is asked; return the scenarios that were chosen."""
    for flag, value, (least, most) in (
        ("--hosts", args.hosts, (1, suite.MOST_HOSTS)),
        ("--age", args.age, _AGES),
        ("--silence", args.silence, _SILENCES),
    ):
        check_range(flag, value, least, most)
    only = [name.strip() for name in args.only.split(",") if name.strip()]
    suite.check_names(system, only)
    if args.above == args.partition:
        raise InputError(f"{args.above}: its own jobs cannot preempt one another", where="--above")
    return only


def _run_scenarios(it: suite.AcceptanceRun, asked: _EndRequest, out: Output) -> list[Result]:
    """Run the scenarios, then remove what they made; return their results in order."""
    results: list[Result] = []
    began_s = time.monotonic()

    def tell(result: Result) -> None:
        results.append(result)
        out.line(f"[{time.monotonic() - began_s:6.1f} s] {result.name}: {result.verdict}")

    it.run(asked.end, tell)
    out.line("removing everything that was created, which may take two minutes")
    order = [each.title for each in it.scenarios]
    results.sort(key=lambda result: order.index(result.name))
    return [*results, it.remove()]


def _show(results: Sequence[Result], out: Output) -> None:
    columns = ("scenario", "tried", "expected", "seen", "verdict", "what to change")
    rows = [
        (each.name, each.tried, each.expected, each.seen, each.verdict, each.change)
        for each in results
    ]
    out.table(columns, rows)


class _EndRequest:
    """A record of the signal, if any, that has asked this run to end.

    Attributes
    ----------
    end : threading.Event
    signum : int
        0 if no signal has come.
    """

    def __init__(self) -> None:
        self.end = threading.Event()
        self.signum = 0

    def hear(self, signum: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.signum = signum
        self.end.set()


@contextmanager
def _signals_recorded() -> Iterator[_EndRequest]:
    """Record signals that would end the process, for the duration of the context."""
    asked = _EndRequest()
    before = {signum: signal.signal(signum, asked.hear) for signum in _END_SIGNALS}
    try:
        yield asked
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
