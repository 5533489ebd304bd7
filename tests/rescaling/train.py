"""A small training whose number of ranks changes; each rank keeps its own account of each step."""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcext.training import connections
from hpcext.training.torch import Session, shard

LENGTH = 300


def whole(value: torch.Tensor) -> torch.Tensor:
    """A tensor that ranks may hold together; all of them ask."""
    gather = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def wait_at(gate: Path) -> None:
    """All ranks wait in the middle of a step until a test lets them go on."""
    while not gate.exists():
        time.sleep(0.005)


def note_threads(directory: Path) -> None:
    """Write down how many threads of process groups there are when the interpreter ends."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (directory / f"threads-{os.getpid()}").write_text(str(names.count("pt_gloo_runloop")))


def tell_noise(session: Session, directory: Path) -> None:
    """Report a goodput, where there is a file ``noise``: by that on two nodes it is 1.8 times as
    fast as on one, or hardly faster."""
    if (directory / "noise").exists():
        noise = float((directory / "noise").read_text())
        session.report_goodput(noise, initial_batch=12, throughput=[0.02, 0.001, 0, 0, 0.01, 0, 1])


def fail(at: int | None, session: Session, directory: Path) -> None:
    """After a step rank 0 stays where it is for ever, and rank 1 fails when the next one begins."""
    if at is None or session.step < at:
        return
    if session.rank == 0:
        wait_at(directory / "never")
    elif session.step > at:
        raise RuntimeError("rank 1 failed alone")


def network(width: int, *, normalized: bool) -> nn.Module:
    """The model; if it is normalized, its buffers are sent before each pass."""
    layers = nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, 1))
    return nn.Sequential(nn.BatchNorm1d(12), layers) if normalized else layers


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--global-batch", type=int)
    parser.add_argument("--gpu-batch", type=int)
    parser.add_argument("--adapt", type=int, help="the first batch of one that adapts")
    parser.add_argument("--balance", action="store_true", help="ranks that get slower by number")
    parser.add_argument("--gates", type=int, nargs="*", default=[])
    parser.add_argument("--spoil", type=int, help="step at which rank 1 changes its weights")
    parser.add_argument("--fail", type=int, help="step after which rank 1 fails, alone")
    parser.add_argument("--plain", action="store_true", help="a loader that cannot be divided")
    parser.add_argument("--workers", type=int, default=0, help="of the loader")
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--replica", type=int, help="ranks that hold the model together")
    parser.add_argument("--copies", type=int, help="steps from one to the next")
    parser.add_argument("--full", action="store_true", help="no memory for copies of shards")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--validate", action="store_true", help="after each epoch, slowly")
    parser.add_argument("--leave", type=int, help="step after which the epoch is left")
    parser.add_argument("--cut", type=int, help="step in which rank 1 loses all its connections")
    parser.add_argument("--misses", type=int, help="step whose gradients the last rank misses")
    parser.add_argument("--accumulate", action="store_true", help="two batches make a step")
    parser.add_argument("--decay", action="store_true", help="of weights, without the optimizer")
    parser.add_argument("--pause", type=float, default=0.0, help="of steps, until told to hurry")
    parser.add_argument("--until", type=Path, help="file with its last epoch")
    parser.add_argument("--slow-start", type=float, default=0.0, help="of new ranks")
    return parser.parse_args()


def main() -> None:  # noqa: PLR0912, PLR0915
    args = arguments()
    # Called after all that is registered later, the session's own among it.
    atexit.register(note_threads, args.directory)

    torch.manual_seed(5)
    inputs = torch.randn(LENGTH, 12)
    targets = (inputs @ torch.randn(12, 1)).tanh()
    data = TensorDataset(torch.arange(LENGTH), inputs, targets)
    # Widths that neither two nor three ranks divide evenly; with one row, some have none.
    width = 25 if args.shard else 32
    model = network(width, normalized=args.validate)
    if args.full:
        vars(importlib.import_module("hpcext.training.torch.copies"))["room_bytes"] = lambda: 0
    if args.shard:
        model = shard(model, nn.Linear, replica_ranks=args.replica)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    if os.environ.get("HPCEXT_JOINS", "0") != "0":
        (args.directory / f"joiner-{os.getpid()}").touch()
        time.sleep(args.slow_start)

    session = Session(
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        seed=3,
        learning_rate=None if args.adapt else "linear",
        checkpoint_every_s=None,
        checkpoint_every_steps=10,
        copy_every_steps=args.copies,
    )
    if args.adapt:
        session.adapt(args.adapt, max_batch_size=2 * args.adapt, every_s=0.1)
    if args.balance:
        # A step that waits at a gate is an accident to this rule.
        session.balance("cpu", rule="affine")
    rates: list[float] = []
    # Kept by the script: they stay the same objects.
    parameters = list(model.parameters())
    model = session.parallel(model)
    if args.compiled:
        # All but the compiler for the processor, which takes most of the time.
        model = torch.compile(model, backend="aot_eager")
    if args.plain:
        loader = DataLoader(data, batch_size=args.global_batch, sampler=session.sampler(data))
    else:
        given = {"global_batch": args.global_batch, "gpu_batch": args.gpu_batch}
        batches = session.batch_sampler(data, **({} if args.adapt else given))
        loader = DataLoader(data, batch_sampler=batches, num_workers=args.workers)
    account = args.directory / f"account-{os.environ['HPCEXT_ATTEMPT']}-{os.getpid()}"
    with account.open("a", buffering=1) as file:
        for epoch in session.epochs(args.epochs):
            for batch in session.batches(loader):
                tell_noise(session, args.directory)
                if session.rank:
                    fail(args.fail, session, args.directory)
                if args.pause and not (args.directory / "hurry").exists():
                    time.sleep(args.pause)
                if session.step in args.gates:
                    (args.directory / f"at-{session.step}-{session.rank}").touch()
                    wait_at(args.directory / f"gate-{session.step}")
                if session.step == args.cut and session.rank == 1:
                    args.cut = None
                    connections.end(connections.sockets())
                if session.step == args.spoil and session.rank == 1:
                    with torch.no_grad():
                        next(model.parameters()).add_(1.0)
                if not rates:
                    # After the session's own hook, so that it sees what the step is made with.
                    optimizer.register_step_pre_hook(
                        lambda it, *_: rates.append(it.param_groups[0]["lr"])
                    )
                if args.balance:
                    time.sleep(0.003 * session.rank * len(batch[0]))
                if not args.accumulate or session.step % 2 == 0:
                    optimizer.zero_grad()
                passes = [(batch, 1.0)] if args.shard else session.microbatches(batch)
                for (_, x, y), share in passes:
                    (((model(x) - y) ** 2).mean() * share).backward()
                if args.shard:
                    nn.utils.clip_grad_norm_(parameters, 1.0)
                if session.step == args.misses and session.rank == session.world_size - 1:
                    # As a rank that dies between the end of this on one rank and on another one.
                    assert session._guard.caught(RuntimeError("gloo: as if one had died"))
                if not args.accumulate or session.step % 2:
                    optimizer.step()
                if args.decay:
                    with torch.no_grad():
                        for parameter in parameters:
                            parameter.mul_(0.999)
                line = {
                    "step": session.step,
                    "epoch": epoch,
                    "rank": session.rank,
                    "size": session.world_size,
                    "indices": batch[0].tolist(),
                    "rate": rates[-1] if rates else None,
                    "pid": os.getpid(),
                    "at": time.time(),
                }
                file.write(json.dumps(line) + "\n")
                if session.step == args.leave and epoch == 0:
                    break
                fail(args.fail, session, args.directory)
            schedule.step()
            if args.validate:
                for _, x, _ in session.validation(DataLoader(data, batch_size=30)):
                    (args.directory / f"validates-{epoch}").touch()
                    time.sleep(args.pause)
                    with torch.no_grad():
                        model(x)
            if args.until and args.until.exists() and epoch >= int(args.until.read_text() or epoch):
                session.finish()
                break
    if session.step in args.gates:
        wait_at(args.directory / f"gate-{session.step}")
    bare = getattr(model, "_orig_mod", model)
    state = {name: whole(value) for name, value in bare.state_dict().items()}
    moments = [whole(value) for each in optimizer.state.values() for value in each.values()]
    if args.shard:
        parts = [*state.values(), *moments]
        model = network(width, normalized=args.validate)
        model.load_state_dict(state)
        if session.rank == 0:
            torch.save(parts, args.directory / "parts.pt")
    if session.rank == 0:
        with torch.no_grad():
            error = float(((model(inputs) - targets) ** 2).mean())
        weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        torch.save({"error": error, "weights": weights}, args.directory / "result.pt")


if __name__ == "__main__":
    main()
