"""Which updater a chain has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowcheck.config import JobConfig
from flowcheck.stages.run_directory.run_dir import RunDir

if TYPE_CHECKING:
    from flowcheck.stages.copy_updater.copy_stage import CopyService
    from flowcheck.stages.replica_update.update_stage import UpdateService


def updater_of(run: RunDir, config: JobConfig) -> UpdateService | CopyService:
    """The one that follows another chain's replica, where the job file names chains, else the one
    that applies gradients. Only that one is loaded."""
    if config.gradients is not None and config.gradients.chains:
        from flowcheck.stages.copy_updater.copy_stage import CopyService

        return CopyService(run, config)
    from flowcheck.stages.replica_update.update_stage import UpdateService

    return UpdateService(run, config)
