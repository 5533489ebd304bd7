"""A replica of torchft for ``lost_ranks.py``, or its lighthouse; with the model of the others."""

from __future__ import annotations

import argparse
import datetime
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rescaling_train import GLOBAL_BATCH, Training, peak_bytes

RANKS = 3


def serve(file: Path) -> None:
    """Be the lighthouse, until the end."""
    from torchft.coordination import LighthouseServer  # noqa: PLC0415 - installed elsewhere

    # As its documentation begins it.
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=10_000)
    file.with_suffix(".new").write_text(server.address())
    file.with_suffix(".new").rename(file)
    while True:
        time.sleep(60)


def train(args: argparse.Namespace) -> None:
    """Train as the examples of torchft do."""
    from torchft import (  # noqa: PLC0415
        Manager,
        Optimizer,
        ProcessGroupGloo,
    )

    with (args.accounts / str(os.getpid())).open("w", buffering=1) as account:
        training = Training(args.parameters, account)

        def load(state: dict[str, dict[str, object]]) -> None:
            training.model.load_state_dict(state["model"])
            training.optimizer.load_state_dict(state["optimizer"])

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        manager = Manager(
            pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=30)),
            min_replica_size=1,
            load_state_dict=load,
            state_dict=lambda: {
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
            },
            replica_id=f"replica-{args.number}",
            store_addr="127.0.0.1",
            store_port=store.port,
            rank=0,
            world_size=1,
            lighthouse_addr=args.lighthouse,
            hostname="127.0.0.1",
        )
        net = training.model
        optimizer = Optimizer(manager, training.optimizer)
        generator = torch.Generator().manual_seed(args.number)
        while True:
            picked = torch.randint(
                len(training.data), (GLOBAL_BATCH // RANKS,), generator=generator
            )
            (x,) = training.data[picked]
            before = manager.current_step()
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.mse_loss(net(x), x))
            # Its DistributedDataParallel does not survive the death of another replica (0.2.0):
            # "assert fut._fut" where the work has failed.
            works = [manager.allreduce(parameter.grad) for parameter in net.parameters()]
            for work in works:
                work.wait()
            optimizer.step()
            if manager.current_step() > before:
                ranks = manager.num_participants()
                line = f"{manager.current_step()} {time.time():.6f} {args.number} {ranks}"
                account.write(f"{line} {peak_bytes()}\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=Path, help="be the lighthouse; its address goes there")
    parser.add_argument("--parameters", type=int)
    parser.add_argument("--accounts", type=Path)
    parser.add_argument("--number", type=int)
    parser.add_argument("--lighthouse")
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
    else:
        train(args)


if __name__ == "__main__":
    main()
