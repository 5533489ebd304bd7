"""Orbax's guide to preemption: its manager saves once jax.distributed has heard of SIGTERM."""

import os
import socket
import sys
import time

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
jax.distributed.initialize(address, num_processes=1, process_id=0)
options = ocp.CheckpointManagerOptions(save_interval_steps=1_000_000, max_to_keep=2)
manager = ocp.CheckpointManager(os.path.abspath("out"), options=options)
state, step = {"x": jnp.zeros(4)}, 0
if manager.latest_step() is not None:
    step = manager.latest_step()
    state = manager.restore(step, args=ocp.args.StandardRestore(state))
while step < int(sys.argv[1]):
    state = {"x": state["x"] + 1}
    time.sleep(0.02)
    step += 1
    with open("steps", "a") as file:
        file.write(f"{step} {time.time()}\n")
    manager.save(step, args=ocp.args.StandardSave(state))
    if manager.reached_preemption(step):
        manager.wait_until_finished()
        sys.exit(0)
