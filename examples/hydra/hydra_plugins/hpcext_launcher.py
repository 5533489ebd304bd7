"""Hydra's submitit launcher, whose jobs run in a pilot: ``hydra/launcher=submitit_hpcext``.

Keep this file in a folder ``hydra_plugins`` beside the application: Hydra finds it by itself.
"""

# Without "from __future__ import annotations": Hydra runs a plug-in before it is among the modules,
# where dataclasses look up annotations that are strings.
from dataclasses import dataclass
from typing import Optional

from hydra.core.config_store import ConfigStore
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher


class HpcextLauncher(BaseSubmititLauncher):
    """The launcher, for the executor of this name."""

    _EXECUTOR = "hpcext"


@dataclass
class HpcextQueueConf(BaseQueueConf):
    """What ``hydra.launcher`` may state; add other keys of a job as you need them."""

    _target_: str = "hydra_plugins.hpcext_launcher.HpcextLauncher"
    pilot: Optional[str] = None  # noqa: UP045  (OmegaConf reads it)
    priority: float = 0.0


ConfigStore.instance().store(group="hydra/launcher", name="submitit_hpcext", node=HpcextQueueConf())
