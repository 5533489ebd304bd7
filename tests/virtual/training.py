"""A virtual training: it counts steps, and takes part in the protocol by our real coordinator."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from virtual import calls
from virtual.group import Broken, Group

from hpcext import protocol
from hpcext.training.checkpoint import CheckpointError, FencedError
from hpcext.training.coordinator import Coordinator
from hpcext.training.feature import Resizing
from hpcext.training.membership import Overtaken
from hpcext.training.ranks import Control, Ranks
from hpcext.training.resizing import Unreachable

if TYPE_CHECKING:
    from virtual.kernel import Process
    from virtual.room import Room

DAEMONS, STRAYS = 0.15, 0.1
"""How many of the trainings leave a process behind that does not end by itself; how many one that
nothing marks as theirs, and that writes a checkpoint late."""
FAILS = 3
"""The exit code of those that fail."""


class Training:
    """One training process."""

    def __init__(self, room: Room, process: Process) -> None:
        self._room, self._process = room, process
        self._steps = int(process.argv[-1])
        self._deaf = process.argv[1] == "deaf"
        self._coordinator = Coordinator(
            checkpoint_every_s=None, checkpoint_every_steps=room.save_every
        )
        attempt = self._coordinator.attempt
        assert attempt is not None
        self._attempt: protocol.Attempt = attempt
        self._resizing: Resizing = Resizing()

    def run(self) -> int:
        """Train from the newest checkpoint to the end."""
        coordinator, attempt = self._coordinator, self._attempt
        launch = self._launch()
        ranks = self._join(launch)
        rank = ranks.rank
        coordinator.join(ranks)
        step = self._begin(ranks)
        if rank == 0:
            self._room.restored(attempt.job_id, attempt.attempt, step, self._process, launch)
        if self._deaf:
            # It will be killed where it is to be suspended, perhaps the hard way.
            self._room.checks.deaf.add(attempt.job_id)
            if self._room.kernel.chance.random() < 0.5:
                calls.sigaction(signal.SIGTERM, signal.SIG_IGN)
        leave_behind(self._room, launch)
        if rank == 0 and self._room.kernel.chance.random() < STRAYS:
            calls.kernel().fork(self._stray)
        coordinator.step, coordinator.done = step, float(step)
        coordinator.begin()
        coordinator.reporter.register(in_place=self._resizing.possible)
        while coordinator.step < self._steps:
            calls.sleep(self._room.step_s * self._room.kernel.chance.uniform(0.5, 1.5))
            self._did(coordinator.step + 1)
            if coordinator.step < self._steps:
                self._boundary()
        self._resizing.finishing()
        coordinator.save_last(self._write)
        return 0

    def _launch(self) -> Any:
        """Return what the manager says of the attempt, with the GPUs that this process holds."""
        launch = json.loads((self._attempt.report_dir / "launch.json").read_bytes())
        launch["gpus"] = launch["gpus"] or gpus(self._process.environ, self._process.machine.name)
        return launch

    def _join(self, launch: Any) -> Ranks:
        """Join the other ranks, if there are any."""
        attempt, size = self._attempt, self._attempt.num_nodes
        if size == 1:
            return Ranks()
        rank = int(self._process.environ.get("HPCEXT_NODE_INDEX", 0))
        self._room.checks.takes(attempt.job_id, attempt.attempt, self._process, launch)
        meeting = self._room.meetings[attempt.job_id, attempt.attempt, 0]
        return Group(meeting, rank, size, self._process)

    def _begin(self, ranks: Ranks) -> int:
        """Restore the newest checkpoint; return its step."""
        step = self._restore(self._coordinator.store) if ranks.rank == 0 else 0
        return int(ranks.broadcast(str(step).encode()))

    def _did(self, step: int) -> None:
        """Note that a step is made, of which rank 0 keeps the account."""
        coordinator, attempt = self._coordinator, self._attempt
        if coordinator.ranks.rank == 0:
            self._room.did(attempt.job_id, attempt.attempt, step, self._process)
        coordinator.stepped(step, float(step))

    def _boundary(self) -> None:
        """Do between two steps what all ranks agree on."""
        self._act(self._coordinator.agree(self._resizing.next_group()))

    def _act(self, agreed: Control) -> None:
        coordinator = self._coordinator
        if agreed.suspend and not self._deaf:
            coordinator.suspend(self._write)
        elif agreed.save:
            coordinator.save(self._write)
        if agreed.resize:
            step = {"step": coordinator.step}
            self._resizing.change(agreed.resize, coordinator.regroup, lambda: step)

    def _restore(self, store: Any) -> int:
        store.open()
        found = store.newest()
        step = found.manifest["step"] if found else 0
        if found:
            data = json.loads((found.path / "count.json").read_bytes())
            assert data == {"step": step}, f"restored {data} at step {step}"
        return int(step)

    def _stray(self) -> None:
        """Try to write a checkpoint once a later attempt has begun."""
        process, coordinator = calls.me(), self._coordinator
        process.name, process.environ = "stray", {}
        calls.setsid()
        calls.sigaction(signal.SIGTERM, signal.SIG_IGN)
        attempt, store, checks = coordinator.attempt, coordinator.store, self._room.checks
        assert attempt is not None
        assert store is not None
        while checks.attempts[attempt.job_id] == attempt.attempt:
            calls.sleep(0.5)
        try:
            store.commit(coordinator.step, {}, lambda draft: None)
        except (CheckpointError, OSError):
            return
        later = f"attempt-{checks.attempts[attempt.job_id]:04d}.opened"
        # On a full disk the later one cannot put its mark.
        if later in self._room.disk.find(str(store.directory)).entries:
            what = f"attempt {attempt.attempt} commits beside a later one"
            checks.wrong(f"job {attempt.job_id}: {what}")

    def _write(self) -> Any:
        store, step = self._coordinator.store, self._coordinator.step
        assert store is not None
        if self._coordinator.ranks.rank:
            return None
        checkpoint = store.commit(
            step, {}, lambda draft: draft.write(
                "count.json", lambda file: file.write(json.dumps({"step": step}).encode()) and None
            ),
        )  # fmt: skip
        attempt = self._coordinator.attempt
        assert attempt is not None
        self._room.saved(attempt.job_id, attempt.attempt, step, str(checkpoint.path))
        return checkpoint


def train(room: Room, process: Process, kind: type[Training] = Training) -> int:
    """Run one; a checkpoint that cannot be used is said, as a script would."""
    process.name = "training"
    room.begin(0.02, 0.3, 3.0)
    if process.argv[1] == "fails":
        room.checks.failing(process.environ)
        return FAILS
    try:
        return kind(room, process).run()
    except (Broken, Overtaken, Unreachable) as error:
        room.kernel.tell(f"{process!r}: {error}")
        return 1
    except CheckpointError as error:
        with contextlib.suppress(OSError):  # its log may be on the full disk
            calls.write(2, f"{error}\n".encode())
        room.kernel.tell(f"{process!r}: {error}")
        if not isinstance(error, FencedError):
            room.checks.unusable(process.environ["HPCEXT_JOB_ID"], str(error))
        return 1


def leave_behind(room: Room, launch: Any) -> None:
    """Have some trainings leave a process that does not end by itself."""
    if room.kernel.chance.random() < DAEMONS:
        pid = calls.kernel().fork(_daemon)
        room.checks.holds(calls.me().machine.processes[pid], launch)


def _daemon() -> None:
    """Hold the GPUs in a session of its own, whatever SIGTERM says."""
    calls.me().name = "daemon"
    calls.setsid()
    calls.sigaction(signal.SIGTERM, signal.SIG_IGN)
    calls.sleep(1000.0)


def gpus(environ: Mapping[str, str], node: str) -> list[str]:
    """Return the GPUs that the batch system has given to a process."""
    said = environ.get("SLURM_STEP_GPUS") or environ.get("CUDA_VISIBLE_DEVICES", "")
    return [f"{node}:{index}" for index in said.split(",") if index]
