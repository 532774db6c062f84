"""Writes a step in the format that [persist] names, always as a folder with a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from flowcheck.config import PersistConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.checkpoint_options import FORMAT_CANNOT_HOLD
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.replica.checkpoint.trainer_state import TrainerState
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.checkpoint_formats.checkpoint_io import contents_for, save
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions, format_named


def check_save_format(config: PersistConfig) -> None:
    """Raises ConfigError for an unknown format or option."""
    format_named(config.format, "persist.format")
    _options(config.format_options)


def write_step(
    step: TrainerState, layout: Layout, folder: Path, form: str, options: dict[str, Any]
) -> None:
    """Writes a step into an empty folder, each file synced, manifest.json last.

    Raises StateError if the format cannot hold the step, OSError if there is no room.
    """
    chosen = _options(options)
    try:
        save(contents_for(step, layout, form, chosen), folder, form, chosen)
    except ConfigError as error:  # of a step, not of the settings
        raise StateError(FORMAT_CANNOT_HOLD(format=form, error=error)) from error


def _options(stated: dict[str, Any]) -> FormatOptions:
    try:
        return msgspec.convert(stated, FormatOptions, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        text = ERROR_TEXT(kind="options", text=str(error))
        raise ConfigError("persist.format_options", stated, text) from error
