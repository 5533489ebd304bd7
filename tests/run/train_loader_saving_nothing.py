"""A loop of PyTorch with two loader workers that saves nothing, in ``EPOCHS`` epochs.

Its last line depends on each of its steps.
"""

from __future__ import annotations

import hashlib
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(800, 64), torch.randn(800, 1))
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    step = 0
    for _ in range(int(sys.argv[1])):
        for inputs, wanted in DataLoader(data, batch_size=8, shuffle=True, num_workers=2):
            loss = ((model(inputs) - wanted) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("step", step, flush=True)
            step += 1
            time.sleep(0.02)
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    print("end", step, hashlib.sha256(weights).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
