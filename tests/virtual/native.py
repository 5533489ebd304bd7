"""A virtual training that saves by its own means: it has no session, and its job says how it saves.

It shares no code with hpcext. It counts steps, writes each count that it saves into a file of its
own, and goes on from the newest that is whole.
"""

from __future__ import annotations

import json
import random
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from virtual import calls, loading, training

from hpcext import checkpointers
from hpcext.jobspec import JobSpec

if TYPE_CHECKING:
    from virtual.kernel import Process
    from virtual.room import Room

NATIVE = "native"
"""The word of a command that says so."""

SHARE = 0.25
"""How many trainings have no session."""

FILES = "{checkpoint_dir}/own/*.json"
WRITES_S = 0.3
"""The longest that one is about writing a checkpoint, in seconds."""

CANNOT_SAVE = 74
"""The exit value of one that cannot save what it has done at its end."""

IN_PLACE = 0.5
"""How many write a checkpoint under its own name; the others rename it into place."""

DEAF = 0.07
"""How many of those that are asked to save never do."""


class Way(NamedTuple):
    """A way to save.

    Attributes
    ----------
    stated : str or dict
        ``checkpoint`` of the job.
    codes : tuple of int
        With one of which it leaves once it has saved; empty if it trains on.
    """

    stated: Any
    codes: tuple[int, ...] = ()


WAYS = {
    "exit": Way({"signal": "SIGUSR1", "done": {"exit": [0, 143]}}, (0, 143)),
    "term": Way({"signal": "SIGTERM", "done": {"exit": [0]}}, (0,)),
    "any": Way({"signal": "SIGUSR2", "done": {"exit": "any"}}, (0, 1, 143)),
    "both": Way({"signal": "SIGHUP", "done": {"exit": [7], "file": FILES}}, (7,)),
    "file": Way({"signal": "SIGUSR2", "done": {"file": FILES}}),
    "requeue": Way({"signal": "SIGUSR1", "done": {"requeue": True}}),
    "newer": Way({"done": {"file": FILES}}),
    "plain": Way("plain"),
    "loop": Way({"preset": "plain", "file": FILES}),
    "waits": Way({"preset": "plain", "file": FILES, "after_s": 3.0}),
}


def some(specs: list[JobSpec], chance: random.Random) -> list[JobSpec]:
    """Have some trainings have no session.

    They are drawn by themselves: a seed without any is the same with and without this.
    """
    return [
        _native(spec, chance) if _trains(spec) and chance.random() < SHARE else spec
        for spec in specs
    ]


def _trains(spec: JobSpec) -> bool:
    return spec.command[:-1] == ("train",) and spec.nodes.max == 1


def _native(spec: JobSpec, chance: random.Random) -> JobSpec:
    from msgspec.structs import replace

    name = chance.choice(list(WAYS))
    saves = checkpointers.checkpoint(WAYS[name].stated)
    deaf = ("deaf",) if saves.signal and chance.random() < DEAF else ()
    command = ("train", NATIVE, name, *deaf, spec.command[-1])
    # As a job file derives it.
    timeout_s = saves.suspend_timeout_s or spec.suspend_timeout_s
    return replace(spec, command=command, checkpoint=saves, suspend_timeout_s=timeout_s)


class Native:
    """One training process."""

    def __init__(self, room: Room, process: Process) -> None:
        environ = process.environ
        self._room, self._process = room, process
        self._job, self._attempt = environ["HPCEXT_JOB_ID"], int(environ["HPCEXT_ATTEMPT"])
        self._steps, self._way = int(process.argv[-1]), WAYS[process.argv[2]]
        self._deaf = "deaf" in process.argv
        self._directory = f"{environ['HPCEXT_CHECKPOINT_DIR']}/own"
        self._launch = f"{environ['HPCEXT_REPORT_DIR']}/launch.json"
        self._asked = False

    def run(self) -> int:
        """Train from the newest checkpoint to the end."""
        room, chance = self._room, self._room.kernel.chance
        environ = self._process.environ
        with loading.module("io").open(self._launch, "rb") as file:
            launch = json.loads(file.read())
        launch["gpus"] = launch["gpus"] or training.gpus(environ, self._process.machine.name)
        asked_by = room.specs[int(self._job) - 1].checkpoint
        if asked_by is not None and asked_by.signal:
            calls.sigaction(getattr(signal, asked_by.signal), self._heard)
        if self._deaf:
            room.checks.deaf.add(self._job)
        step = self._restore()
        room.checks.losses.began(self._process, launch)
        room.restored(self._job, self._attempt, step, self._process, launch)
        training.leave_behind(room, launch)
        while step < self._steps:
            calls.sleep(room.step_s * chance.uniform(0.5, 1.5))
            step += 1
            room.did(self._job, self._attempt, step, self._process)
            asked = self._asked and not self._deaf
            if not asked and step % room.save_every and step < self._steps:
                continue
            if not self._save(step):
                if step == self._steps:
                    return CANNOT_SAVE
            elif asked:
                self._asked = False
                if self._way.codes:
                    return chance.choice(self._way.codes)
                if self._way is WAYS["requeue"]:
                    self._requeue()
        return 0

    def _heard(self, signum: int, _frame: object) -> None:
        self._asked = True

    def _requeue(self) -> None:
        environ = self._process.environ
        loading.module("subprocess").run(["scontrol", "requeue", self._job], env=environ)

    # Its checkpoints.

    def _restore(self) -> int:
        """Return the step to go on from."""
        os = loading.module("os")
        os.makedirs(self._directory, exist_ok=True)
        for name in sorted(os.listdir(self._directory), reverse=True):
            if name.endswith(".json"):
                with loading.module("io").open(f"{self._directory}/{name}", "rb") as file:
                    data = file.read()
                try:
                    return int(json.loads(data)["step"])
                except ValueError:
                    continue
        return 0

    def _save(self, step: int) -> bool:
        """Write a checkpoint; return whether it is there."""
        chance, losses = self._room.kernel.chance, self._room.checks.losses
        name = f"{self._directory}/{step:06}.json"
        beside = chance.random() >= IN_PLACE
        data = json.dumps({"step": step}).encode()
        losses.writes(self._process, in_place=not beside)
        try:
            with loading.module("io").open(f"{name}.new" if beside else name, "wb") as file:
                file.write(data[:5])
                file.flush()
                calls.sleep(chance.uniform(0.0, WRITES_S))
                file.write(data[5:])
                file.flush()
                calls.fsync(file.fileno())
            if beside:
                calls.rename(f"{name}.new", name)
            directory = calls.open(self._directory, 0)
            calls.fsync(directory)
            calls.close(directory)
        except OSError as error:
            self._room.kernel.tell(f"{self._process!r} cannot save: {error}")
            losses.written(self._process, whole=False)
            return False
        losses.written(self._process, whole=True)
        self._room.saved_natively(self._job, self._attempt, step)
        return True


def train(room: Room, process: Process) -> int:
    """Run one."""
    process.name = "training"
    room.begin(0.02, 0.3, 3.0)
    try:
        return Native(room, process).run()
    except OSError as error:
        room.kernel.tell(f"{process!r}: {error}")
        return CANNOT_SAVE
