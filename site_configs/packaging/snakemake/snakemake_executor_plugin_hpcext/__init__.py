"""What Snakemake looks for in a plug-in for executors; the rest is a part of hpcext."""

from __future__ import annotations

from snakemake_interface_executor_plugins.settings import CommonSettings

from hpcext.integrations.snakemake.executor import Executor
from hpcext.integrations.snakemake.settings import ExecutorSettings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    auto_deploy_default_storage_provider=False,
)
