"""Which metrics are shown where not all have room."""

from __future__ import annotations

import pytest

from hpcext.core.trials import Trial
from hpcext.manager.views.report import chief


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ("grad_norm learning_rate loss", "loss grad_norm"),
        ("lr epoch eval_accuracy", "eval_accuracy lr"),
        ("grad_norm loss eval_loss", "loss eval_loss"),
        ("train_loss learning_rate accuracy", "train_loss accuracy"),
        ("samples_per_second val/f1 aux_loss", "val/f1 aux_loss"),
        ("gradNorm loss", "loss gradNorm"),
        ("count", "count"),
        ("lr temperature", "temperature lr"),
        ("eval_runtime eval_samples_per_second perplexity", "perplexity eval_runtime"),
        ("b_score a_score", "b_score a_score"),
        ("lr error_rate", "error_rate lr"),
        ("", ""),
    ],
)
def test_what_says_how_well_it_does_comes_first(reported: str, shown: str) -> None:
    metrics = {name: float(number) for number, name in enumerate(reported.split())}
    found = chief(metrics)
    assert [name for name, _ in found] == shown.split()
    assert all(metrics[name] == value for name, value in found)


def test_what_a_sweep_compares_by_is_first() -> None:
    trial = Trial("s", {}, metric="lr", goal="max")
    assert next(iter(chief({"loss": 1.0, "lr": 2.0}, trial))) == ("lr", 2.0)
