"""The shape of the run_*.py scripts of transformers, with a model and data made on the spot."""

import time

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Noted(TrainerCallback):
    def on_step_end(self, args, state, control, **rest):
        time.sleep(0.02)
        with open("steps", "a") as file:
            file.write(f"{state.global_step} {time.time()}\n")


(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
)
data = [{"input_ids": torch.tensor([i % 20, 3]), "labels": torch.tensor(i % 2)} for i in range(64)]
trainer = Trainer(
    BertForSequenceClassification(config), args, train_dataset=data, callbacks=[Noted()]
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
