"""XGBoost's TrainingCheckPoint and xgb_model, as its example of continued training has them."""

import glob
import os
import sys
import time

import numpy as np
import xgboost

rounds = int(sys.argv[1])
random = np.random.default_rng(0)
data = xgboost.DMatrix(random.normal(size=(200, 4)), random.random(200) > 0.5)
models = sorted(glob.glob("model_*.json"), key=os.path.getmtime)
booster = xgboost.Booster(model_file=models[-1]) if models else None
done = booster.num_boosted_rounds() if booster else 0


class Noted(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        time.sleep(0.02)
        with open("steps", "a") as file:
            file.write(f"{model.num_boosted_rounds()} {time.time()}\n")
        return False


if done < rounds:
    checkpoint = xgboost.callback.TrainingCheckPoint(".", "model", as_pickle=False, interval=10)
    xgboost.train(
        {"nthread": 1, "eta": 0.01, "max_depth": 2},
        data,
        rounds - done,
        xgb_model=booster,
        callbacks=[Noted(), checkpoint],
    )
