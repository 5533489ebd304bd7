"""``train.py`` by ranks of MPI, started by ``srun --mpi``: ``train_mpi.py DIRECTORY``.

MPI says which rank each is and where they meet; at the end it adds them up.
"""

from __future__ import annotations

import importlib
import os
import runpy
import socket
from pathlib import Path

# By name: it is installed for this test alone.
MPI = importlib.import_module("mpi4py.MPI")
world = MPI.COMM_WORLD
local = world.Split_type(MPI.COMM_TYPE_SHARED)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


os.environ |= {
    "RANK": str(world.rank),
    "WORLD_SIZE": str(world.size),
    "LOCAL_RANK": str(local.rank),
    "LOCAL_WORLD_SIZE": str(local.size),
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": str(world.bcast(free_port() if world.rank == 0 else None)),
}
runpy.run_path(str(Path(__file__).with_name("train.py")), run_name="__main__")
ranks = world.allreduce(1)
if world.rank == 0:
    print("MPI counts", ranks)
