"""A Hydra application that keeps its own checkpoint, as its documentation has applications."""

import json
import os
import time

import hydra
import numpy as np
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

ConfigStore.instance().store(name="config", node={"steps": 100, "rate": 0.1, "every": 10})


@hydra.main(version_base=None, config_name="config")
def train(config: DictConfig) -> None:
    x = np.random.default_rng(0).normal(size=(200, 4))
    y = x @ np.arange(4.0)
    weights, step = np.zeros(4), 0
    if os.path.exists("state.json"):
        with open("state.json") as file:
            state = json.load(file)
        weights, step = np.array(state["weights"]), state["step"]
    while step < config.steps:
        weights -= config.rate * x.T @ (x @ weights - y) / len(x)
        step += 1
        time.sleep(0.02)
        with open("steps", "a") as file:
            file.write(f"{step} {time.time()}\n")
        if step % config.every == 0:
            with open("state.new", "w") as file:
                json.dump({"weights": weights.tolist(), "step": step}, file)
            os.replace("state.new", "state.json")


if __name__ == "__main__":
    train()
