"""A training whose settings Hydra reads; ``python train.py -m rate=0.1,0.2`` runs one of each."""

from __future__ import annotations

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

ConfigStore.instance().store(name="config", node={"rate": 0.1, "steps": 100})


@hydra.main(version_base=None, config_name="config")
def train(config: DictConfig) -> float:
    """Go down a parabola; return how far from its end that came."""
    place = 1.0
    for _ in range(config.steps):
        place -= config.rate * 2 * place
    print(f"rate {config.rate}: {place:.3g}", flush=True)
    return place


if __name__ == "__main__":
    train()
