"""LightGBM's callback and init_model, as its guide to continued training has them."""

import os
import sys
import time

import lightgbm
import numpy as np

rounds = int(sys.argv[1])
random = np.random.default_rng(0)
x = random.normal(size=(200, 4))
# Nothing can be learned of it, or its rounds would soon add no trees, and not count.
y = random.random(200) > 0.5
booster = lightgbm.Booster(model_file="model.txt") if os.path.exists("model.txt") else None
done = booster.current_iteration() if booster else 0


def noted(env):
    time.sleep(0.02)
    step = env.iteration + 1
    with open("steps", "a") as file:
        file.write(f"{step} {time.time()}\n")
    if step % 10 == 0:
        env.model.save_model("model.new")
        os.replace("model.new", "model.txt")


if done < rounds:
    lightgbm.train(
        {
            "objective": "binary",
            "verbose": -1,
            "num_threads": 1,
            "min_data_in_leaf": 5,
            "learning_rate": 0.005,
        },
        lightgbm.Dataset(x, y),
        rounds - done,
        init_model=booster,
        callbacks=[noted],
    )
