"""Gives a watched file to a replica that waits before a step which lacks bytes."""

from __future__ import annotations

from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.base_checkpoints import NO_UPDATER
from flowcheck.findings.catalog.file_audits import NOT_HEALED
from flowcheck.findings.catalog.run_directories import ANOTHER_REQUEST, REQUEST_WITHDRAWN
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import file_error_of
from flowcheck.ops.trainer_checkpoint.replica_reset import end_wait
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import Position, stage_at
from flowcheck.vault.audit.param_group_check import check_settings
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate


def given_to_waiting(run: RunDir, template: CheckpointTemplate, file: Path) -> Finding | None:
    """Gives a file to a replica that waits before a step which lacks bytes. Returns what came of
    it; None: another request is under way, or the file's step has not arrived yet."""
    try:
        if stage_at(Position.STEP).name not in run.stage_pids():
            return NOT_HEALED(NO_UPDATER(run.root))
        layout, _ = peek_versions(run.replica)
        check_settings(template, optimizer_of_run(run), layout, str(file))
        return end_wait(run, template, file)
    except (FlowCheckError, OSError) as error:
        found = file_error_of(error, file)
        return None if found.is_any_of(ANOTHER_REQUEST, REQUEST_WITHDRAWN) else NOT_HEALED(found)
