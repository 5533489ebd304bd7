"""A trainer of benchmarks/harvest.py: a small classification in PyTorch.

``harvest_train.py DIRECTORY SEED PACE`` keeps its own account in ``DIRECTORY/SEED.steps``: for each
step ``ATTEMPT STEP TIME NODES``, with the monotonic clock; step 0 is the begin of an attempt. At
the end it prints the accuracy on samples that it was not trained on and a digest of its weights,
which go into ``SEED.result``, too. On any number of nodes each step trains the same samples; only
the order in which gradients are added depends on it. PACE seconds for each sample of a step stand
for a larger model, which two nodes train twice as fast.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

BEGAN_S = time.monotonic()

import torch  # noqa: E402  (takes seconds, which are the attempt's)
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hpcext import protocol  # noqa: E402
from hpcext.training.torch import Session  # noqa: E402

TRAINED, HELD_OUT = 1536, 1000
FEATURES, CLASSES = 16, 6
BATCH, EPOCHS = 64, 6
SAVE_EVERY = 20


def samples(seed: int) -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Classes that overlap, so that nobody tells all of them apart."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=draw)
    labels = torch.randint(CLASSES, (TRAINED + HELD_OUT,), generator=draw)
    points = centres[labels] + 1.6 * torch.randn(len(labels), FEATURES, generator=draw)
    trained = TensorDataset(points[:TRAINED], labels[:TRAINED])
    return trained, points[TRAINED:], labels[TRAINED:]


def main() -> None:
    """Train, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("pace", type=float)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data, points, labels = samples(args.seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, CLASSES)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = Session(
        model=model,
        optimizer=optimizer,
        deterministic=True,
        seed=args.seed,
        checkpoint_every_s=None,
        checkpoint_every_steps=SAVE_EVERY,
    )
    net = session.parallel(model)
    loader = DataLoader(data, batch_sampler=session.batch_sampler(data, global_batch=BATCH))
    attempt = protocol.Attempt.from_environ()
    number = attempt.attempt if attempt else 0
    with (args.directory / f"{args.seed}.steps").open("a", buffering=1) as log:
        if session.rank == 0:
            log.write(f"{number} 0 {BEGAN_S:.3f} {session.world_size}\n")
        for _ in session.epochs(EPOCHS):
            for inputs, targets in session.batches(loader):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(inputs), targets).backward()
                optimizer.step()
                time.sleep(args.pace * len(targets))
                if session.rank == 0:
                    now_s = time.monotonic()
                    log.write(f"{number} {session.step + 1} {now_s:.3f} {session.world_size}\n")
    if session.rank == 0:
        with torch.no_grad():
            accuracy = float((model(points).argmax(dim=1) == labels).float().mean())
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        digest = hashlib.sha256(weights.tobytes()).hexdigest()[:12]
        (args.directory / f"{args.seed}.result").write_text(f"{accuracy:.4f} {digest}\n")
        print(f"accuracy {accuracy:.4f} on {HELD_OUT} held-out samples, weights {digest}")


if __name__ == "__main__":
    main()
