"""Lightning's own demo model and data, by a Trainer with nothing set but its length."""

import sys
import time

import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel


class Noted(pl.Callback):
    def on_train_batch_end(self, trainer, *rest):
        time.sleep(0.02)
        with open("steps", "a") as file:
            file.write(f"{trainer.global_step} {time.time()}\n")


trainer = pl.Trainer(
    max_epochs=-1,
    max_steps=int(sys.argv[1]),
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    limit_val_batches=0,
    callbacks=[Noted()],
)
trainer.fit(BoringModel())
