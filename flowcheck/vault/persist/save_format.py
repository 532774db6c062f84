"""Writes a step in the format that [persist] names, always as a folder with a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from flowcheck.config import PersistConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint.trainer_state import TrainerState
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, path_of
from flowcheck.replica.optimizer.param_groups import optimizer_numbering
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.checkpoint_formats import FORMATS
from flowcheck.vault.checkpoint_formats import write as write_as
from flowcheck.vault.checkpoint_formats.checkpoint_contents import FormatOptions, contents_of

NATIVE = "flowcheck"
FILE = "checkpoint.pt"
"""In the folder of a form that is one file."""


def check_form(config: PersistConfig) -> None:
    """Raises ConfigError for a form or an option that there is not."""
    if config.format not in FORMATS:
        raise ConfigError("persist.format", config.format, f"is one of {', '.join(FORMATS)}")
    _options(config.format_options)


def write(
    step: TrainerState, layout: Layout, folder: Path, form: str, options: dict[str, Any]
) -> None:
    """Into an empty folder, each file on disk, manifest.json last.

    Raises StateError where the form cannot hold the step, OSError where there is no room.
    """
    if form == NATIVE:
        checkpoint_save.write(step, folder, layout)
        return
    chosen = _options(options)
    like = None
    if chosen.like is not None:
        from flowcheck.vault.trainer_checkpoint.checkpoint_template import load_template

        like = load_template(
            chosen.like, layout, (), order=optimizer_numbering(step.optimizer_config, layout)
        )
    parts = contents_of(step, layout, like)
    try:
        if FORMATS[form].folder:
            whole = folder / ".whole"
            write_as(parts, whole, form, chosen)
            for path in sorted(whole.iterdir(), key=lambda one: one.name == MANIFEST):
                path.rename(folder / path.name)
            whole.rmdir()
        else:
            write_as(parts, folder / FILE, form, chosen)
            path_of(folder / FILE).rename(folder / MANIFEST)
    except ConfigError as error:  # of a step, not of the settings
        raise StateError(f"format {form}: {error}") from error


def _options(stated: dict[str, Any]) -> FormatOptions:
    try:
        return msgspec.convert(stated, FormatOptions, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        raise ConfigError("persist.format_options", stated, str(error)) from error
