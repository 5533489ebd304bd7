"""A training that writes an account of its steps, of which the rest of hpcext knows nothing.

``python -m hpcext.acceptance.training [--torch] DIRECTORY FINISH`` trains until the file FINISH
exists. Each life of it, that is each process, has a file of its own in DIRECTORY, so that two
simultaneous lives are seen on network file systems, too. The lines are ``begin INSTANT ATTEMPT``,
``step NUMBER INSTANT`` for each step that was done, ``end INSTANT``.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from hpcext import protocol

STEP_S = 0.1
SAVE_EVERY = 20
"""Steps between two periodic checkpoints, which are the most that can be lost."""

MOST_STEPS = 20_000

TORCH = "--torch"


class _Account:
    """A file of lines, each of which is written before the next step begins."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}.txt"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(directory / name, flags, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def main(words: list[str]) -> None:
    """Train.

    Parameters
    ----------
    words : list of str
        The arguments of the command line.
    """
    directory, finish = Path(words[-2]), Path(words[-1])
    attempt = protocol.Attempt.from_environ()
    account = _Account(directory)
    account.write("begin", f"{time.time():.3f}", attempt.attempt if attempt else 0)
    done = np.zeros(MOST_STEPS, dtype=np.int8)
    session, turn = _with_torch(done) if TORCH in words else _with_numpy(done)
    for _ in session.epochs(1):
        for (step,) in session.batches(session.sampler(MOST_STEPS, shuffle=False).batched(1)):
            time.sleep(STEP_S)
            turn()
            done[step] += 1
            account.write("step", step + 1, f"{time.time():.3f}")
            if not (done[: step + 1] == 1).all() or done[step + 1 :].any():
                account.write("wrong", step + 1)
                sys.exit(f"step {step + 1}: the state does not match the steps before it")
            if finish.exists():
                break
    account.write("end", f"{time.time():.3f}")


def _with_numpy(done: Any) -> tuple[Any, Any]:
    from hpcext.training.session import Session  # noqa: PLC0415

    return Session(done=done, checkpoint_every_s=None, checkpoint_every_steps=SAVE_EVERY), int


def _with_torch(done: Any) -> tuple[Any, Any]:
    import torch  # noqa: PLC0415  (not every site has it)

    from hpcext.training.torch import Session  # noqa: PLC0415

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    session = Session(
        model=model,
        optimizer=optimizer,
        done=done,
        checkpoint_every_s=None,
        checkpoint_every_steps=SAVE_EVERY,
    )

    def turn() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    return session, turn


if __name__ == "__main__":
    main(sys.argv[1:])
