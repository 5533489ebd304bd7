"""Measurements of a training that follows Pollux's model, as files."""

from __future__ import annotations

import itertools
from pathlib import Path

EPOCHS = 4
STEPS = 400
"""Of the smallest batch, in an epoch."""


def step_s(gpus: int, nodes: int, batch: int) -> tuple[float, float]:
    """Seconds of a step, and of its synchronisation."""
    sync_s = 0.0 if gpus == 1 else 0.02 if nodes == 1 else 0.06 + 0.002 * gpus
    return 0.01 + 0.001 * batch + sync_s, sync_s


def write(folder: Path, batches: tuple[int, ...] = (16, 64, 256), per_gpu: int = 64) -> Path:
    """All files of one model; the noise scale is 4 times the smallest batch, then 40 times."""
    folder.mkdir(parents=True)
    local = [size for size in (4, 8, 16, 32, 64, 128, 256) if size <= per_gpu]
    placements = [
        shape
        for nodes in (1, 2, 3, 4)
        for shape in itertools.product((1, 2, 3, 4), repeat=nodes)
        if shape == min(shape[at:] + shape[:at] for at in range(nodes))
    ]
    lines = ["placement,local_bsz,step_time,sync_time"]
    for shape in placements:
        for batch in local:
            times = step_s(sum(shape), len(shape), batch)
            lines.append(f"{''.join(map(str, shape))},{batch},{times[0]},{times[1]}")
    (folder / "placements.csv").write_text("\n".join(lines) + "\n")
    lines = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes in (6, 8, 12, 16):
        for per_node in (1, 2, 3, 4):
            for batch in local:
                times = step_s(nodes * per_node, nodes, batch)
                lines.append(f"{nodes},{nodes * per_node},{batch},{times[0]},{times[1]}")
    (folder / "scalability.csv").write_text("\n".join(lines) + "\n")
    for batch in batches:
        lines = ["progress,iteration,metric,grad_sqr,grad_var"]
        for epoch in range(1, EPOCHS + 1):
            noise = 4.0 if epoch <= EPOCHS // 2 else 40.0
            lines.append(f"{STEPS * epoch},{STEPS * epoch},{epoch},1.0,{noise}")
        (folder / f"validation-{batch}.csv").write_text("\n".join(lines) + "\n")
    return folder
