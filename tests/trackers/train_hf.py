"""A Trainer of transformers that logs to MLflow, and one of whose arguments changes."""

from __future__ import annotations

import os
import sys
import time

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hpcext.training.transformers import Suspend

ATTEMPT = int(os.environ["HPCEXT_ATTEMPT"])


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        words = torch.arange(8) + index % 24
        return {"input_ids": words, "labels": words}


class Told(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print(state.global_step, file=DONE)
        time.sleep(0.2 if ATTEMPT == 1 else 0)


if __name__ == "__main__":
    DONE = open("steps", "a", buffering=1)  # noqa: SIM115
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    args = TrainingArguments(
        output_dir="output",
        per_device_train_batch_size=2,
        save_steps=500 + ATTEMPT,
        max_steps=int(sys.argv[1]),
        save_strategy="no",
        logging_steps=1,
        report_to=["mlflow"],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=Sentences(), callbacks=[Told()])
    suspend = Suspend(trainer, checkpoint_every_s=60)
    trainer.train(resume_from_checkpoint=suspend.checkpoint)
