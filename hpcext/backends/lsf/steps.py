"""The executor of attempts on the hosts of an LSF job, by ``blaunch``, ``jsrun`` or ``lsrun``.

LSF divides nothing inside a job: the GPUs of an attempt on each host are chosen here, and the
supervisor there uses only these. One process stands for an attempt (``launch/spread.py``): it
starts a launcher for each host, with the index of the node as an argument. Signals do not cross
hosts, so supervisors look for orders, and a manager for reports. What a launcher leaves behind when
it dies is not documented, so the GPUs of an attempt are free only when each of its hosts has
reported that no process is left (``launch/sweep.py``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.backends.lsf.script import WANTED_BACK, OnLsf
from hpcext.batch import lsf, runner
from hpcext.core.errors import BatchError
from hpcext.core.facts import Ended
from hpcext.core.values import Action, Node
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.executors.processes import Watch
from hpcext.executors.steps import ASK_PAUSE_MAX_S, ASK_PAUSE_S, StepExecutor
from hpcext.launch import spread, supervise, sweep
from hpcext.process import Process

log = logging.getLogger(__name__)

SWEEP_TIMEOUT_S = 60.0
"""Seconds to wait for a host to report, before it is asked again."""

CORE_THREADS = 4
"""The logical CPUs of a slot with jsrun: POWER9 in SMT4, the default of Summit."""

_PYTHON = (sys.executable, "-I", "-S")


class LsfHost(OnLsf):
    """An executor that carries out actions on the only host of an LSF job, that of the manager.

    LSF may stop only the manager and its script, so supervisors stop with that script.
    """

    def _where(self, action: Action, gpus: Sequence[str]) -> dict[str, Any]:
        leader = Process.of(os.getppid())
        return {**super()._where(action, gpus), "leader": leader}


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The command that starts commands on hosts of a job.

    Attributes
    ----------
    name : {"blaunch", "jsrun", "lsrun"}
    slots : Mapping[str, int]
        Host → its slots.
    gpus : int
        The number of GPUs on each host.
    """

    name: str
    slots: Mapping[str, int]
    gpus: int

    @property
    def shares_gpus(self) -> bool:
        """Whether a command that it starts sees only the named GPUs."""
        return self.name == "jsrun"

    def argv(self, host: str, gpus: Sequence[int], command: Sequence[str], erf: Path) -> list[str]:
        """Return the command that starts a command on a host.

        Parameters
        ----------
        host : str
        gpus : sequence of int
            The positions of its GPUs; none if it needs none.
        command : sequence of str
        erf : pathlib.Path
            The path for an explicit resource file, if jsrun needs one.

        Raises
        ------
        OSError
            That file cannot be written.
        """
        if self.name == "blaunch":
            return ["blaunch", host, *command]
        if self.name == "lsrun":
            # With -m, the host is used whatever its load is (lsrun(1)).
            return ["lsrun", "-m", host, *command]
        documents.write_file(erf, self._resources(host, gpus).encode())
        return ["jsrun", "--erf_input", str(erf), *command]

    def _resources(self, host: str, gpus: Sequence[int]) -> str:
        """Return one resource set, in the "Explicit Resource File (ERF) format" of JSM."""
        each = self.slots[host] * CORE_THREADS // max(1, self.gpus)
        cpus = ",".join(f"{gpu * each}-{(gpu + 1) * each - 1}" for gpu in gpus or (0,))
        devices = f" gpu: {{{','.join(map(str, gpus))}}} ;" if gpus else ""
        return (
            # A sweep has no resources of its own.
            "overlapping_rs: allow\n"
            "cpu_index_using: logical\n"
            f"rank: 0: {{ hostname: {host}; cpu: {{{cpus}}} ;{devices} mem: * }}\n"
        )


class LsfSteps(StepExecutor):
    """An executor that carries out actions on the hosts of one LSF job.

    Parameters
    ----------
    nodes : sequence of Node
    launcher : Launcher
    **common
        Parameters of :class:`~hpcext.executors.steps.StepExecutor`.
    """

    # LSF may send SIGTERM to all processes of a job, which a spread must outlive.
    _end_signal = signal.SIGKILL

    def __init__(self, *, nodes: Sequence[Node], launcher: Launcher, **common: Any) -> None:
        super().__init__(addresses={}, jobs=lsf.Commands(), wanted_back=WANTED_BACK, **common)
        self._nodes = {node.name: node for node in nodes}
        self._launcher = launcher

    def _start(self, action: Action) -> None:
        places = {name: self._free(name)[:count] for name, count in action.alloc.items()}
        if any(len(places[name]) < count for name, count in action.alloc.items()):
            files = AttemptFiles(self._directory, action)
            self._not_started(files, "not all of its GPUs are free")
            return
        gpus = (f"{name}:{index}" for name, found in places.items() for index in found)
        self._begin(action, tuple(gpus))

    def _where(self, action: Action, gpus: Sequence[str]) -> dict[str, Any]:
        told = None if self._launcher.shares_gpus else _by_node(gpus)
        nodes = [{"name": name, "gpus": told and told[name]} for name in action.alloc]
        return {**super()._where(action, gpus), "nodes": nodes}

    def _take_over(self, watch: Watch) -> None:
        files = watch.files
        # What had not begun when an earlier run of this job ended must not begin now.
        ours = files.begun_in() == self._allocation
        if ours and files.ends.ended() is None and self._recorded(watch) is None:
            # If a spread runs it that the last manager could not note, this one waits for its end.
            self._spawn_again(watch)
        else:
            self._settle(watch)

    def _spawn(self, watch: Watch) -> None:
        # Not again: the one that is there is locked by whoever runs it. It is not there if the
        # last manager died before it could write it.
        if not (watch.files.directory / spread.SPREAD_FILE).exists():
            self._write_launchers(watch.files, _by_node(watch.gpus))
        super()._spawn(watch)

    def _write_launchers(self, files: AttemptFiles, places: Mapping[str, Sequence[int]]) -> None:
        launchers = []
        for index, (host, gpus) in enumerate(places.items()):
            command = [*_PYTHON, supervise.__file__, str(files.directory), str(index)]
            erf = files.directory / f"resources-{index}.erf"
            launchers.append(self._launcher.argv(host, gpus, command, erf))
        # The spread runs on the host of the manager's script, and stops or ends the attempt on all
        # hosts if LSF stops or ends that script.
        leader = Process.of(os.getppid())
        document = {
            "schema": spread.SPREAD,
            "launchers": launchers,
            "leader": str(leader) if leader else "none",
        }
        documents.write_json(files.directory / spread.SPREAD_FILE, document)

    def _argv(self, watch: Watch) -> Sequence[str]:
        return [*_PYTHON, spread.__file__, str(watch.files.directory)]

    def _free(self, node: str) -> list[int]:
        """Return the positions of a node's GPUs that no attempt holds, ascending."""
        held = {gpu for watch in self._watches.values() for gpu in watch.gpus}
        indices = range(self._nodes[node].gpus) if node in self._nodes else ()
        return [index for index in indices if f"{node}:{index}" not in held]

    # The end.

    def _over(self, watch: Watch, ended: Ended) -> None:
        """Finish once each node has reported its end; the first one has reported how."""
        if all(watch.files.ends.ended_on(index) for index in (0, *watch.files.ends.others)):
            super()._over(watch, ended)
        else:
            self._later(functools.partial(self._sweep, watch, None))

    async def _sweep(self, watch: Watch, process: Process | None) -> None:
        """End what processes are left on each host, and wait until each reports that none is."""
        files = watch.files
        not_begun = [host for index, host in self._nodes_left(watch) if not files.begun_on(index)]
        # From here on it seems to have begun everywhere.
        watch.never_ran = watch.never_ran or bool(not_begun)
        # An end that was reported before this order is the real one.
        ended = files.ends.ended() or files.ends.failed_elsewhere()
        self._order_end(files)
        pause_s = ASK_PAUSE_S
        left = self._nodes_left(watch)
        while left:
            done = await asyncio.gather(
                *(asyncio.to_thread(self._sweep_host, files, *each) for each in left)
            )
            left = [each for each, gone in zip(left, done, strict=True) if not gone]
            if left:
                down = await asyncio.to_thread(self._unreachable, [host for _, host in left])
                self._lose(down)
                left = [each for each in left if each[1] not in down]
            if left:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, ASK_PAUSE_MAX_S)
        if not_begun:
            # Its launcher may have found the host gone, though the host has answered since.
            self._lose(await asyncio.to_thread(self._unreachable, not_begun))
        await self._look_around(watch)
        self._finish(watch, ended or self._lost(watch))

    def _nodes_left(self, watch: Watch) -> list[tuple[int, str]]:
        """Return index and host of each node that may still have processes of an attempt.

        Of an earlier run of this job LSF has ended them, but if that run has lost its first host,
        the others notice it up to a minute later (lsf.conf, LSF_RES_ALIVE_TIMEOUT).
        """
        launch = watch.files.launch() or {}
        ours = launch.get("allocation") == self._allocation
        return [
            (index, str(node["name"]))
            for index, node in enumerate(launch.get("nodes", ()))
            if (ours or node["name"] in self._nodes) and not watch.files.ends.ended_on(index)
        ]

    def _order_end(self, files: AttemptFiles) -> None:
        try:
            files.order("end")
        except OSError as error:
            # The sweep kills it.
            log.warning("job %s could not be ended: %s", files.job, error.strerror)

    def _sweep_host(self, files: AttemptFiles, index: int, host: str) -> bool:
        """Have a host end the processes that are left; return whether it reports that none is."""
        nonce = secrets.token_hex(8)
        command = [*_PYTHON, sweep.__file__, str(files.directory), str(index), nonce]
        own = protocol.node_directory(files.directory, index)
        try:
            argv = self._launcher.argv(host, (), command, files.directory / f"sweep-{index}.erf")
            runner.run(argv, timeout_s=SWEEP_TIMEOUT_S)
        except (BatchError, OSError) as error:
            log.info("%s on %s: %s", files.job, host, error)
        files.look_anew()
        try:
            said = documents.read_json(own / sweep.SWEPT_FILE, sweep.SWEPT)
        except (OSError, ValueError):
            said = {}
        if said.get("nonce") != nonce:
            log.warning("it is unknown whether processes of job %s are left on %s", files.job, host)
        return said.get("nonce") == nonce

    @staticmethod
    def _unreachable(hosts: Sequence[str]) -> list[str]:
        """Return those of these hosts that LSF cannot reach any more."""
        try:
            return lsf.Commands().gone(hosts)
        except BatchError as error:
            log.warning("it is unknown whether %s is up: %s", ", ".join(hosts), error)
            return []


def _by_node(gpus: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of GPUs, ``NODE:INDEX``, by node, in the same order."""
    found: dict[str, list[int]] = {}
    for gpu in gpus:
        node, _, index = gpu.rpartition(":")
        found.setdefault(node, []).append(int(index))
    return found
