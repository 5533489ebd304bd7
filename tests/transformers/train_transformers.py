"""A language model of two layers, made from its configuration, trained by the Trainer of Hugging
Face; the model writes its own account of the samples it sees."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import transformers
from script import Traces, digest, no_room
from torch.utils.data import Dataset

# By name: the library imports its modules when something of them is first asked for, here once.
from transformers import Trainer, TrainingArguments

from hpcext.training.transformers import Suspend, per_device

if transformers.utils.is_datasets_available():
    # The Trainer would import it, in each attempt anew.
    import datasets  # noqa: F401

SAMPLES, LENGTH, WORDS = 96, 8, 160


class Sentences(Dataset):
    """Numbered sentences: the first word is the number of the sentence."""

    def __init__(self, samples=SAMPLES):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        words = [index] + [128 + (index + place) % 16 for place in range(LENGTH - 1)]
        ids = torch.tensor(words)
        return {"input_ids": ids, "labels": ids}


class Model(transformers.GPT2LMHeadModel):
    """Writes down what it is trained with."""

    traces = None
    now = None
    full = None

    def forward(self, input_ids=None, labels=None, **more):
        step = self.now.state.global_step
        if self.training:
            self.traces.note("train", step, *input_ids[:, 0].tolist())
            self.traces.point(f"train:{step}")
            if step == self.full:
                limit_files(self.traces.rank)
        else:
            self.traces.note("evaluate", step, *input_ids[:, 0].tolist())
            self.traces.point(f"evaluate:{step}")
        return super().forward(input_ids=input_ids, labels=labels, **more)


class Watch(transformers.TrainerCallback):
    def __init__(self, traces, early):
        self.traces = traces
        self.early = early

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.early:
            control.should_training_stop = True

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.traces.point(f"epoch:{state.global_step}")

    def on_train_end(self, args, state, control, **kwargs):
        self.traces.point("end")

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.traces.note("evaluated", state.global_step, metrics["eval_loss"])


def limit_files(rank):
    if rank == 0:
        # Enough for the account, and for no checkpoint.
        no_room(Path(os.environ["SCRIPT_LOG"]).stat().st_size + 5000)


def arguments(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--steps", type=int, default=-1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--per-device", type=int)
    parser.add_argument("--every-steps", type=int)
    parser.add_argument("--save-strategy", default="no")
    parser.add_argument("--evaluate", default="epoch")
    parser.add_argument("--forget", action="store_true", help="the checkpoint")
    parser.add_argument("--full", type=int, help="no large file can be written from then on")
    parser.add_argument("--early", type=int, help="stop at that step")
    parser.add_argument("--callback", action="store_true", help="give it to the Trainer")
    parser.add_argument("--dir")
    parser.add_argument("--ask", action="append", default=[])
    return parser.parse_args(words)


def train(*words):
    args = arguments(words)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    traces = Traces()
    traces.ask_at = args.ask
    transformers.set_seed(3)
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=args.dropout,
        embd_pdrop=args.dropout,
        attn_pdrop=args.dropout,
    )
    model = Model(config)
    model.traces, model.full = traces, args.full
    size = args.per_device or per_device(args.batch, accumulate=args.accumulate)
    settings = TrainingArguments(
        output_dir=str(Path.cwd().parent / "output"),
        per_device_train_batch_size=size,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=args.accumulate,
        num_train_epochs=args.epochs,
        max_steps=args.steps,
        learning_rate=3e-3,
        eval_strategy=args.evaluate,
        eval_steps=5,
        save_strategy=args.save_strategy,
        save_steps=4,
        logging_steps=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
        full_determinism=False,
    )
    trainer = Trainer(
        model,
        settings,
        train_dataset=Sentences(),
        eval_dataset=Sentences(12),
        callbacks=[Watch(traces, args.early)],
    )
    model.now = trainer
    suspend = Suspend(
        model if args.callback else trainer,
        checkpoint_dir=args.dir,
        checkpoint_every_s=None,
        checkpoint_every_steps=args.every_steps,
        on_suspend=[lambda: traces.note("callback")],
    )
    trainer.train(resume_from_checkpoint=None if args.forget else suspend.checkpoint)
    weights = [parameter.detach().numpy() for parameter in model.parameters()]
    traces.note("end", trainer.state.global_step, digest(*weights))
    if traces.rank == 0:
        torch.save(model.state_dict(), "weights.pt")


if __name__ == "__main__":
    train(*sys.argv[1:])
