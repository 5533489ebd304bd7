"""A small convolutional network that is trained on a GPU, in the ways in which users do it.

``--kind`` is how a step is computed. ``--window S`` trains for so many seconds beside others that
have come together in ``--meet``, and measures its speed; else it trains ``--steps``. Its account
has a line for its beginning and for each step. ``--runs FILE`` makes several runs of one import of
PyTorch: lists of runs, each begun together when the ones before have ended.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
# Where another program runs this one, its own folder is not in the path.
sys.path.insert(0, str(Path(__file__).parent))

import forks
import machine

from hpcext.training.torch import Session
from hpcext.training.torch.ranks import init

SAMPLES, SIDE, WARM_UP = 512, 32, 10


class Kind(NamedTuple):
    """How a step is computed.

    Attributes
    ----------
    amp : bool
        In half precision, with a scaler.
    compiled : str
        A mode of ``torch.compile``; empty for none.
    graphed : bool
        Forward and backward pass as CUDA graphs.
    dropout : float
    nccl : bool
        In a process group of one rank, that the script itself has formed.
    """

    amp: bool = False
    compiled: str = ""
    graphed: bool = False
    dropout: float = 0.1
    nccl: bool = False


KINDS = {
    "plain": Kind(),
    "amp": Kind(amp=True),
    "compiled": Kind(compiled="default"),
    "compiled-graphs": Kind(compiled="reduce-overhead"),
    "graphs": Kind(graphed=True, dropout=0.0),
    "graphs-dropout": Kind(graphed=True),
    "nccl": Kind(nccl=True),
}


def network(width: int, dropout: float) -> nn.Module:
    """Three convolutions, of which no GPU computes a gradient in another order each time."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.GroupNorm(4, 2 * width),
        nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout) if dropout else nn.Identity(),
        nn.Linear(2 * width * (SIDE // 4) ** 2, 10),
    )


class Trained:
    """A training of one kind."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.kind = args, KINDS[args.kind]
        torch.manual_seed(args.seed)
        model = network(args.width, self.kind.dropout)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.scaler = torch.amp.GradScaler(device) if self.kind.amp else None
        if self.kind.nccl:
            store = torch.distributed.HashStore()
            init(torch.device(device), store=store, rank=0, world_size=1)
        self.session = Session(
            model=model,
            optimizer=self.optimizer,
            seed=args.seed,
            deterministic=args.window is None,
            checkpoint_every_s=None,
            **({"scaler": self.scaler} if self.scaler else {}),
        )
        self.model = model
        self.cuda = self.session.device.type == "cuda"
        self.net = self._forward(self.session.parallel(model))
        # The same in each attempt, whose random numbers go on where they were.
        images = torch.randn(SAMPLES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(7))
        data = TensorDataset(images, images.mean(dim=(1, 2, 3)).argsort() % 10)
        batches = self.session.batch_sampler(data, global_batch=args.batch)
        self.loader = DataLoader(data, batch_sampler=batches, pin_memory=self.cuda)

    def _forward(self, net: nn.Module) -> Any:
        if self.kind.nccl:
            places = [self.session.device] if self.cuda else None
            net = nn.parallel.DistributedDataParallel(net, device_ids=places)
        if self.kind.compiled:
            # Where there is no GPU its code generator would take longer than all else.
            how = {"mode": self.kind.compiled} if self.cuda else {"backend": "aot_eager"}
            return torch.compile(net, **how)
        if self.kind.graphed and self.cuda:
            sample = torch.randn(self.args.batch, 3, SIDE, SIDE, device=self.session.device)
            return torch.cuda.make_graphed_callables(net, (sample,))
        return net

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One optimizer step."""
        device = self.session.device
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        half = torch.float16 if self.cuda else torch.bfloat16
        amp = torch.autocast(device.type, half) if self.kind.amp else contextlib.nullcontext()
        self.optimizer.zero_grad()
        with amp:
            loss = nn.functional.cross_entropy(self.net(images), labels)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def digest(self) -> str:
        """All bits of the weights, in short."""
        found = hashlib.sha256()
        for _, tensor in sorted(self.model.state_dict().items()):
            found.update(tensor.cpu().numpy().tobytes())
        return found.hexdigest()

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()


def train(args: argparse.Namespace) -> None:
    """Train so many steps, and write what became of the weights."""
    with args.account.open("a", buffering=1) as account:

        def note(**facts: Any) -> None:
            account.write(json.dumps({"at": time.time(), **facts}) + "\n")

        note(pid=os.getpid(), visible=os.environ.get("CUDA_VISIBLE_DEVICES"), **machine.seen())
        with machine.occupied():
            training = Trained(args)
            session = training.session
            note(resumed=session.resumed, device=str(session.device))
            epochs = -(-args.steps * args.batch // SAMPLES)
            for _ in session.epochs(epochs):
                for images, labels in session.batches(training.loader):
                    training.step(images, labels)
                    if session.step + 1 == args.suspend_at and not session.resumed:
                        os.kill(os.getpid(), signal.SIGTSTP)
                    if args.pace:
                        training.synchronize()
                        time.sleep(args.pace)
                    note(step=session.step + 1)
            if args.result:
                told = {"step": session.step, "digest": training.digest()}
                args.result.write_text(json.dumps(told))


def measure(args: argparse.Namespace) -> None:
    """Train beside the others for a while, and write how fast that was."""
    with machine.occupied():
        training = Trained(args)
        session, steps, began_s = training.session, 0, 0.0
        turns = (batch for _ in session.epochs(10**6) for batch in session.batches(training.loader))
        for number, (images, labels) in enumerate(turns):
            training.step(images, labels)
            if number < WARM_UP:
                continue
            if number == WARM_UP:
                training.synchronize()
                meet(args.meet, args.together)
                began_s = time.perf_counter()
                continue
            steps += 1
            if steps % 10 == 0:
                training.synchronize()
                args.account.write_text(str(steps))
                if time.perf_counter() - began_s >= args.window:
                    break
        took_s = time.perf_counter() - began_s
        args.result.write_text(json.dumps({"steps": steps, "seconds": took_s}))
        session.finish()


def meet(place: Path, together: int) -> None:
    """Wait until all others have come, too."""
    (place / str(os.getpid())).touch()
    deadline_s = time.monotonic() + 120
    while len(list(place.iterdir())) < together:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{together} trainings did not come together")
        time.sleep(0.005)


def make_runs(path: Path) -> None:
    """Make lists of runs, one list after the other; each run says itself what came of it."""
    forks.load()
    for together in json.loads(path.read_text()):
        pids = [
            forks.fork(lambda words=each["words"]: main(words), each["environ"], Path(each["log"]))
            for each in together
        ]
        for pid in pids:
            forks.wait(pid)


def main(words: list[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="plain")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep after a step")
    parser.add_argument("--suspend-at", type=int, default=0)
    parser.add_argument("--account", type=Path)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--window", type=float)
    parser.add_argument("--meet", type=Path)
    parser.add_argument("--together", type=int, default=1)
    args = parser.parse_args(words)
    if args.runs:
        make_runs(args.runs)
    elif args.window is not None:
        measure(args)
    else:
        train(args)


if __name__ == "__main__":
    main()
