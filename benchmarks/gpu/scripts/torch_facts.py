"""What PyTorch sees of GPUs, as JSON; with ``--hold`` it stays on one until it is ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import machine


def main() -> None:
    """Print, and perhaps stay."""
    facts = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
        # PyTorch counts by NVML; what CUDA itself sees is what is_available() asks.
        "count": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    }
    if torch.cuda.is_available():
        facts["uuid"] = str(torch.cuda.get_device_properties(0).uuid)
    if "--hold" not in sys.argv:
        print(json.dumps(facts), flush=True)
        return
    held = torch.ones(1 << 28, dtype=torch.uint8, device="cuda" if "uuid" in facts else "cpu")
    with machine.occupied(len(held)):
        print(json.dumps(facts), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
