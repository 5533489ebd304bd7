"""A Lightning training with what must come back: dropout, noise where samples are read, a schedule,
validation, accumulation; it writes its own account of what it did."""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import time
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from script import Traces, digest, no_room
from torch.utils.data import DataLoader, Dataset

from hpcext.training.lightning import Suspend

SAMPLES, CLASSES = 120, 4


class Points(Dataset):
    """Numbered samples, with noise drawn where they are read."""

    def __init__(self, noise):
        self.noise = noise

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        label = index % CLASSES
        x = torch.randn(12, generator=generator) + 2 * torch.eye(12)[label]
        return index, x + self.noise * torch.randn(12), label


class Network(pl.LightningModule):
    def __init__(self, traces, args):
        super().__init__()
        self.traces = traces
        self.args = args
        self.net = torch.nn.Sequential(
            torch.nn.Linear(12, 24),
            torch.nn.ReLU(),
            torch.nn.Dropout(args.dropout),
            torch.nn.Linear(24, CLASSES),
        )
        self.batches = 0

    def training_step(self, batch, batch_idx):
        index, x, y = batch
        name = f"{self.current_epoch}.{batch_idx}"
        self.traces.note("train", name, *index.tolist())
        self.traces.point(f"train:{name}")
        if name in self.args.signal:
            os.kill(os.getpid(), getattr(signal, self.args.signal[name]))
        if name == self.args.full:
            limit_files(self.traces.rank)
        while name == self.args.hold and not asked(self.traces):
            time.sleep(0.01)
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        _, x, y = batch
        self.traces.note("validate", f"{self.current_epoch}.{batch_idx}")
        if not self.trainer.sanity_checking:
            self.traces.point(f"validate:{self.current_epoch}.{batch_idx}")
        right = (self.net(x).argmax(dim=1) == y).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def on_train_epoch_start(self):
        self.traces.note("epoch", self.current_epoch)
        self.traces.point(f"epoch:{self.current_epoch}")

    def on_train_epoch_end(self):
        self.traces.note("ended", self.current_epoch)
        self.traces.point(f"ended:{self.current_epoch}")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.traces.note("batch", self.current_epoch, batch_idx)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, gamma=0.7)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def arguments(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--every-steps", type=int)
    parser.add_argument("--every-s", type=float)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--gpu-batch", type=int)
    parser.add_argument("--loader", default="suspend", choices=["suspend", "plain", "other"])
    parser.add_argument("--forget", action="store_true", help="the checkpoint")
    parser.add_argument("--validate-every", type=float, default=1.0)
    parser.add_argument("--dir")
    parser.add_argument("--ask", action="append", default=[])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--signal", nargs="*", default=[], help="as 0.3=SIGUSR1: EPOCH.BATCH")
    parser.add_argument("--full", help="no large file can be written from then on, on rank 0")
    parser.add_argument("--hold", help="wait there, in the first attempt, for a suspension")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--dropped", action="store_true")
    args = parser.parse_args(words)
    args.signal = dict(pair.split("=") for pair in args.signal)
    return args


def asked(traces):
    return traces.attempt != "1" or signal.SIGTSTP in signal.sigpending()


def limit_files(rank):
    if rank == 0:
        # Enough for the account, and for no checkpoint.
        no_room(Path(os.environ["SCRIPT_LOG"]).stat().st_size + 3000)


def train(*words):
    if words[:1] == ("example",):
        sys.argv = list(words[1:])
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    args = arguments(words)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    traces = Traces()
    traces.ask_at = args.ask
    if "SIGTERM" in args.signal.values():
        signal.signal(signal.SIGTERM, lambda *_: traces.note("sigterm"))
    pl.seed_everything(3, verbose=False)
    model = Network(traces, args)
    suspend = Suspend(
        checkpoint_every_s=args.every_s,
        checkpoint_every_steps=args.every_steps,
        checkpoint_dir=args.dir,
        on_suspend=[lambda: traces.note("callback")],
    )
    data = Points(args.noise)
    if args.loader == "plain":
        loader = DataLoader(data, batch_size=args.batch)
    else:
        size = {"gpu_batch": args.gpu_batch} if args.gpu_batch else {"global_batch": args.batch}
        last = "dropped" if args.dropped else "weighted"
        loader = suspend.loader(data, seed=5, num_workers=args.workers, last=last, **size)
    if args.loader == "other":
        loader = DataLoader(data, batch_size=args.batch)
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=suspend.devices,
        strategy="ddp" if suspend.devices > 1 else "auto",
        callbacks=[suspend],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=args.accumulate,
        val_check_interval=args.validate_every,
    )
    traces.note("found", Path(suspend.checkpoint).parent.name if suspend.checkpoint else "-")
    checkpoint = None if args.forget else suspend.checkpoint
    trainer.fit(model, loader, DataLoader(Points(0.0), batch_size=40), ckpt_path=checkpoint)
    if args.twice:
        trainer.fit(model, loader)
    weights = [parameter.detach().numpy() for parameter in model.parameters()]
    accuracy = float(trainer.callback_metrics["accuracy"])
    traces.note("end", trainer.global_step, digest(*weights), accuracy)
    if traces.rank == 0:
        torch.save(model.net.state_dict(), "weights.pt")


if __name__ == "__main__":
    train(*sys.argv[1:])
