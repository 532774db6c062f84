"""Refuses a job file that names a file where the chain is to write a folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import FOLDER_IS_FILE
from flowcheck.stages.privilege.job_file_paths import (
    OUTPUT_FOLDER_KEYS,
    job_file_tables,
    setting_texts,
)


def check_output_folders(job: Path) -> None:
    """Raises ConfigError where a folder that the job file names for the chain's output, or a part
    of its path, is a file: before anything is made, for the chain would find out at its first
    checkpoint. `run` is looked at where the run directory is made: `--run` may replace it."""
    for key, text in setting_texts(job_file_tables(job)):
        local = text.removeprefix("file://")
        if key in OUTPUT_FOLDER_KEYS and key != "run" and "://" not in local:
            found = file_in_way(Path(local))
            if found is not None:
                raise ConfigError(key, text, FOLDER_IS_FILE(found))


def file_in_way(folder: Path) -> Path | None:
    """What is there, and is no folder, at this path or on the way to it; None: nothing is. What
    this user may not look at is taken for a folder."""
    with suppress(OSError):
        for part in (folder, *folder.absolute().parents):
            if part.exists():
                return None if part.is_dir() else part
    return None
