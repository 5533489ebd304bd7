"""A program that ends by its own fault on the GPU: it writes to an address that is not its own.

``--after FILE`` waits for that file first. Without a GPU it fails otherwise.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

WRITES = 'extern "C" __global__ void writes(long long at) { *(volatile int *)at = 1; }'


def main() -> None:
    """Fail."""
    if not torch.cuda.is_available():
        raise RuntimeError("an illegal memory access, as it would be on a GPU")
    x = torch.ones(1024, device="cuda")
    for word in sys.argv[2:3]:
        while not Path(word).exists():
            x.mul_(1.0)
            torch.cuda.synchronize()
            time.sleep(0.001)
    try:
        write = torch.cuda._compile_kernel(WRITES, "writes")
        write((1, 1, 1), (1, 1, 1), (1 << 20,))
    except (AttributeError, ImportError, OSError, TypeError) as error:
        # An assertion in a kernel is a fault of the program, too.
        print(f"no kernel of our own: {error}", file=sys.stderr)
        x[torch.tensor([1 << 30], device="cuda")].sum().item()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
