"""A training that compiles if it is told to.

Its optimizer is made before the session, as in PyTorch's examples.
"""

from __future__ import annotations

import os
import sys

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from hpcext.training.torch import Session

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = Session(model=model, optimizer=optimizer, checkpoint_dir=sys.argv[1] or None)
if "compile" in sys.argv:
    torch.compile(lambda x: (x * 2).sin())(torch.ones(8))
print(cache_dir(), os.environ.get("TRITON_CACHE_DIR", ""), flush=True)
