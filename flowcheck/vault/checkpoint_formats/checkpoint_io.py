"""Writes a step in any format, its manifest last, also as [persist] names it; finds and reads
checkpoints of any format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from flowcheck.atomic_write import fsync_path
from flowcheck.config import OptimizerConfig, PersistConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import unreadable_checkpoints as unreadable
from flowcheck.findings.catalog.checkpoint_damage import NOT_AS_WRITTEN
from flowcheck.findings.catalog.checkpoint_options import FORMAT_CANNOT_HOLD, FORMAT_WROTE_NO_FILE
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint.trainer_state import TrainerState
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.replica.checkpoint_files.latest_pointer import (
    latest_checkpoint,
    why_latest_is_missing,
)
from flowcheck.replica.checkpoint_files.manifest import (
    FULL,
    MANIFEST,
    PARAMETERS_ONLY,
    Manifest,
    encode_manifest,
    load_manifest,
    manifest_path,
    write_manifest,
)
from flowcheck.replica.optimizer.optimizer_builder import ParameterNumber
from flowcheck.replica.optimizer.param_groups import optimizer_numbering
from flowcheck.replica.param_layout import Layout
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import checked_file_name, refuse_special_file
from flowcheck.vault.audit.param_group_check import check_settings
from flowcheck.vault.checkpoint_formats import dcp_shards
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.dcp_shards import ModelShard
from flowcheck.vault.checkpoint_formats.format_registry import (
    FORMATS,
    NO_OPTIONS,
    CheckpointFormat,
    FormatOptions,
    format_named,
)
from flowcheck.vault.checkpoint_formats.native_format import holds_native_files
from flowcheck.vault.overwrite_guard import OutputTarget, ProtectedPath, new_output
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.buffer_step_inference import ObservedFile
from flowcheck.vault.trainer_checkpoint.checkpoint_template import (
    CheckpointTemplate,
    read_template,
    stated_names,
)
from flowcheck.vault.trainer_checkpoint.shard_of_checkpoint import cut_to_shards
from flowcheck.wire.training_job.operator_statements import ShardCut

DEFAULT_FILE_FORMAT = "torch"
"""Format of a file that no format recognises. Its reader says what the file is instead."""
SAVED_FILE = "checkpoint.pt"
"""Name of the file in the folder of a saved step whose format is a single file."""


def contents_for(
    step: TrainerState,
    layout: Layout,
    form: str,
    options: FormatOptions = NO_OPTIONS,
    names: Sequence[str] = (),
    seen: Sequence[ObservedFile] = (),
) -> CheckpointContents:
    """The contents of a step, completed from the earlier checkpoint `options.like`. names: the
    trainer's parameter names, if they are stated. seen: other files of the trainer, as evidence
    about buffers.

    Raises ConfigError for an unknown format, StateError if the earlier checkpoint does not fit.
    """
    chosen, like, template = format_named(form), options.like, None
    if like is not None and not (chosen.like_may_be_configuration and _is_configuration(like)):
        order = optimizer_numbering(step.optimizer_config, layout)
        template = load_template(like, layout, names, order=order)
        if chosen.keeps_groups_of_like:
            check_settings(template, step.optimizer_config, layout, str(like))
    return contents_of(step, layout, template, seen)


def _is_configuration(folder: Path) -> bool:
    """Whether a folder holds a model's configuration and no weights."""
    try:
        return (folder / "config.json").is_file() and not detect_format(folder)
    except StateError:
        return True


def write(
    contents: CheckpointContents,
    path: Path,
    form: str,
    options: FormatOptions = NO_OPTIONS,
    *,
    force: bool = False,
    protected: tuple[ProtectedPath, ...] = (),
) -> Manifest:
    """Writes a step with its manifest to `path`, a file or a folder. It is complete and on disk
    when this returns; after an error nothing of it is there.

    Raises ConfigError for an unknown format and as `OutputTarget.check` does; StateError that names
    what the format cannot hold; OSError if there is no room.
    """
    chosen = format_named(form)
    target = OutputTarget(path=path, folder=chosen.folder, force=force, protected=protected)
    with new_output(target, manifest=True) as (place, manifest_path):
        manifest = _write_files(contents, chosen, options, place, path.name)
        if manifest_path is None:
            _finish_folder(place, manifest)
        else:
            manifest_path.write_bytes(encode_manifest(manifest))
    return manifest


def write_shards(
    shards: Sequence[ModelShard],
    target: OutputTarget,
    options: FormatOptions,
    assumed: tuple[Finding, ...],
) -> Manifest:
    """Writes all shards of a step as one DCP folder, with its manifest, as `write` does. shards:
    [shard] of one model; assumed: what the whole rests on. Raises as `write`, and StateError where
    they are no whole model."""
    with new_output(target, manifest=True) as (place, _):
        with ChecksummedWriter(reads_back=True) as sums:
            sums.names[place.name] = target.path.name
            lacks = dcp_shards.write(shards, place, options, sums)
            first = shards[0].contents
            # No replica computed a digest of the whole.
            whole = replace(first.trainer_state, assumed=assumed, digest="")
            told = replace(first, trainer_state=whole)
            manifest = _manifest_of(told, dcp_shards.FORM, lacks, sums)
        _finish_folder(place, manifest)
    return manifest


def save(
    contents: CheckpointContents, folder: Path, form: str, options: FormatOptions = NO_OPTIONS
) -> None:
    """Writes a step into an empty folder, each file synced, manifest.json last. A format with a
    single file is written to SAVED_FILE in the folder. Raises as `write` does."""
    chosen = format_named(form)
    place = folder if chosen.folder else folder / SAVED_FILE
    _finish_folder(folder, _write_files(contents, chosen, options, place, place.name))


def _write_files(
    contents: CheckpointContents,
    chosen: CheckpointFormat,
    options: FormatOptions,
    place: Path,
    name: str,
) -> Manifest:
    """Writes the files of a step at `place`, which gets the name `name` later. Returns their
    manifest."""
    if chosen.needs_like is not None and options.like is None:
        raise ConfigError("--like", None, chosen.needs_like)
    with ChecksummedWriter(contents.expected, reads_back=True) as sums:
        sums.names[place.name] = name
        lacks = chosen.write(contents, place, options, sums)
        if not sums.files():
            raise StateError(FORMAT_WROTE_NO_FILE(chosen.name))
        return _manifest_of(contents, chosen.name, lacks, sums)


def _manifest_of(
    contents: CheckpointContents, form: str, lacks: tuple[Finding, ...], sums: ChecksummedWriter
) -> Manifest:
    """Of what was written."""
    given = contents.trainer_state
    return Manifest(
        form=form,
        step=given.step,
        digest=given.digest,
        torch_version=str(torch.__version__),
        kind=PARAMETERS_ONLY if given.optimizer is None else FULL,
        resume_caveats=lacks,
        older=contents.older,
        tainted=given.tainted,
        files=sums.files(),
        tensors=sums.tensors(),
        evidence=given.evidence,
        assumed=given.assumed,
        **sums.format_fields,
    )


def _finish_folder(folder: Path, manifest: Manifest) -> None:
    write_manifest(folder / MANIFEST, manifest)
    for below in folder.rglob("*/"):  # files are on disk already, their names are not
        fsync_path(below)


def read(path: Path, form: str | None = None) -> Any:
    """A checkpoint of any format as one nested dictionary of tensors and plain values. Runs no code
    from the files. form: the format's name, for files that do not show it.

    Raises StateError if the path is no checkpoint, if it is damaged (the error names the tensor),
    or if it holds other objects than tensors and plain values.
    """
    chosen = format_named(form or detect_format(path))
    manifest = load_manifest(path) if manifest_path(path).is_file() else None
    place = path
    if manifest is not None and not chosen.reader_verifies:
        faults = verify_files(path if path.is_dir() else path.parent, manifest, whole_files=False)
        if faults:
            raise StateError(NOT_AS_WRITTEN(checkpoint=path, fault=faults[0].finding))
        if path.is_dir() and not chosen.folder and len(manifest.files) == 1:  # see `save`
            (name,) = manifest.files
            place = path / checked_file_name(name, str(path))
    with structure_errors_as_state_errors(str(path)):
        return chosen.read(place)


def load_template(
    path: Path,
    layout: Layout,
    names: Sequence[str] = (),
    step: Step | None = None,
    order: Sequence[ParameterNumber] | None = None,
    *,
    may_be_rounded: bool = False,
    cuts: Sequence[ShardCut] = (),
    tree: Any = None,
) -> CheckpointTemplate:
    """Reads the checkpoint at `path`, in any format, as a template for a replica of this layout.
    names, step, order, may_be_rounded and errors: see `read_template`. cuts: [parameter] the part
    of it that the replica has; (): all of each; tree: what `read` gave for the path, where several
    replicas have parts of it."""
    whole = read(path) if tree is None else tree
    tree = cut_to_shards(whole, names, cuts) if cuts else whole
    return read_template(tree, layout, names, str(path), step, order, may_be_rounded=may_be_rounded)


def template_for(
    path: Path,
    layout: Layout,
    rule: OptimizerConfig,
    step: Step | None = None,
    *,
    may_be_rounded: bool = False,
    cuts: Sequence[ShardCut] = (),
    tree: Any = None,
) -> CheckpointTemplate:
    """Reads a template as `load_template` does, with the parameter order and names that the job
    states. rule: the stated optimizer."""
    order, names = optimizer_numbering(rule, layout), stated_names(layout)
    return load_template(
        path, layout, names, step, order, may_be_rounded=may_be_rounded, cuts=cuts, tree=tree
    )


def detect_format(path: Path) -> str:
    """The name of a checkpoint's format. Raises StateError if its files show no known format."""
    refuse_special_file(path)
    if manifest_path(path).is_file():
        return load_manifest(path).form
    is_folder = path.is_dir()
    try:
        for one in FORMATS.values():
            if one.folder == is_folder and one.recognizes(path):
                return one.name
    except OSError as error:
        raise StateError(unreadable.CANNOT_BE_READ(file=path, error=error.strerror)) from error
    if not is_folder:
        return DEFAULT_FILE_FORMAT
    if holds_native_files(path):
        raise StateError(unreadable.UNFINISHED(folder=path, manifest=MANIFEST))
    raise StateError(unreadable.UNKNOWN_FORMAT(path))


def newest_output(path: Path) -> Path:
    """The checkpoint that `path`/latest names, or `path` itself if there is no such file. Raises
    StateError if the named checkpoint is missing or incomplete."""
    if path.is_dir() and not manifest_path(path).is_file():
        newest = latest_checkpoint(path)
        if newest is None and (gone := why_latest_is_missing(path)):
            raise StateError(gone)
        return newest or path
    return path


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
