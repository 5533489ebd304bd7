"""A program that ends by its own fault on the GPU: it writes to an address that is not its own.

Without a GPU it fails otherwise.
"""

from __future__ import annotations

import sys

import torch

WRITES = 'extern "C" __global__ void writes(int at) { *(volatile int *)(long long)at = 1; }'
NOT_OURS = 1 << 20


def main() -> None:
    """Fail."""
    if not torch.cuda.is_available():
        raise RuntimeError("an illegal memory access, as it would be on a GPU")
    x = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    try:
        write = torch.cuda._compile_kernel(WRITES, "writes")
    except Exception as error:
        # An assertion in a kernel is a fault of the program, too.
        print(f"no kernel of our own: {error}", file=sys.stderr)
        x[torch.tensor([1 << 30], device="cuda")].sum().item()
    else:
        write((1, 1, 1), (1, 1, 1), (NOT_OURS,))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
