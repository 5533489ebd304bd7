"""What a user can set: ``--hpcext-pilot``."""

from dataclasses import dataclass, field
from typing import Optional

from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase


@dataclass
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc]
    """The settings of the executor.

    Attributes
    ----------
    pilot : str or None
        The pilot of the jobs.
    """

    # Snakemake reads this annotation, as it is, and knows no other form of it.
    pilot: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "directory, id or name of the pilot (default: the only one that runs)",
            "env_var": False,
            "required": False,
        },
    )
