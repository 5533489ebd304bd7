"""A training as its users write it, that saves nothing and knows nothing of hpcext.

It says each tenth step, and in the end what its weights came to.
"""

import argparse
import hashlib
import os
import time

# Sums in the same order each time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, SAMPLES = 1024, 8192


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ballast", type=int, default=0, help="bytes to hold besides")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(SAMPLES, 64)
    data = TensorDataset(x, (x[:, :10] ** 2).argmax(dim=1))
    # Workers that were forked after the GPU was opened would have it open, too.
    loader = DataLoader(
        data, batch_size=256, shuffle=True, num_workers=2, pin_memory=device.type == "cuda",
        multiprocessing_context="spawn", persistent_workers=True,
    )  # fmt: skip
    ballast = torch.ones(args.ballast, dtype=torch.uint8, device=device)
    net = nn.Sequential(
        nn.Linear(64, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type)
    step = 0
    while step < args.steps:
        for batch in loader:
            inputs, labels = (each.to(device) for each in batch)
            optimizer.zero_grad()
            with torch.autocast(device.type):
                loss = nn.functional.cross_entropy(net(inputs), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
            time.sleep(0.02)
            if step == args.steps:
                break
    bits = hashlib.sha256()
    for each in net.state_dict().values():
        bits.update(each.cpu().numpy().tobytes())
    print("end", bits.hexdigest()[:12], int(ballast.sum()), flush=True)


if __name__ == "__main__":
    main()
