"""`flowcheck restore --format`: writes a step in a named checkpoint format, without a template."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from flowcheck.errors import ConfigError, StateError
from flowcheck.ops.console_output import growing_bar, print_line
from flowcheck.ops.lifecycle.chain_runner import last_audit
from flowcheck.ops.restore import step_lookup
from flowcheck.ops.restore.step_lookup import with_extra_files
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.checkpoint_files.manifest import Manifest
from flowcheck.replica.optimizer.param_groups import optimizer_numbering
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.audit.param_group_check import check_settings
from flowcheck.vault.checkpoint_formats import FORMATS, read, write
from flowcheck.vault.checkpoint_formats.checkpoint_contents import (
    CheckpointContents,
    FormatOptions,
    contents_of,
)
from flowcheck.vault.checkpoint_formats.format_detection import detect_format
from flowcheck.vault.overwrite_guard import ProtectedPath, check_out
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate, read_template


@dataclass(frozen=True, slots=True)
class FormatRequest:
    """What is to be written, and where."""

    form: str
    out: Path
    options: FormatOptions = field(default_factory=FormatOptions)
    step: Step | None = None
    """None: the newest."""
    force: bool = False
    spared: tuple[ProtectedPath, ...] = ()
    """What the step, or what it is filled into, lies in."""


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """What was written, and how fast."""

    manifest: Manifest
    size_bytes: int
    took_s: float

    @property
    def rate(self) -> str:
        unit, size = ("GB", 1e9) if self.size_bytes >= 1e8 else ("MB", 1e6)
        many = self.size_bytes / size
        return f"{many:.2f} {unit} in {self.took_s:.1f} s, {many / self.took_s:.2f} {unit}/s"


@dataclass(frozen=True, slots=True)
class StepSource:
    """Where the step is."""

    run: Path
    checkpoint: Path | None = None
    """A folder, instead of the run."""
    where: str | None = None
    """What the folder is called to the user."""
    also: tuple[Path, ...] = ()
    """More checkpoints of the trainer's, of other steps."""
    code: bool = False
    """Code that the checkpoint names is run: the user vouches for it."""


def run(source: StepSource, asked: FormatRequest, *, as_json: bool) -> int:
    """Writes `asked.out`. Raises ConfigError, StateError where there is no such step or it does not
    fit."""
    check_asked(asked)
    with opened_step(source, asked.step) as found:
        written = restore_from(with_extra_files(found, source.also), asked)
        audit = last_audit(RunDir(source.run)) if source.checkpoint is None else None
    audited = audit.step if audit is not None and audit.passed else None
    manifest = written.manifest
    if as_json:
        result = {
            "step": manifest.step,
            "format": manifest.form,
            "out": str(asked.out),
            "from": found.where,
            "bytes": written.size_bytes,
            "seconds": round(written.took_s, 3),
            "assumed": manifest.assumed,
            "not_full": manifest.lacks,
            "older": manifest.older,
            "audited": audited,
        }
        print(msgspec.json.encode(result).decode())
        return 0
    print_line(
        f"{asked.out}: step {manifest.step} of {found.where}, as {manifest.form}: {written.rate}"
    )
    files, tensors = len(manifest.files), len(manifest.tensors)
    print_line(f"  {files} files, {tensors} tensors, summed as the disk was given them")
    print_line(f"  flowcheck verify {asked.out} reads them back")
    if manifest.lacks:
        print_line(f"  NOT a full resume: {'; '.join(map(str, manifest.lacks))}")
    for name, of in manifest.older.items():
        print_line(f"  of step {of}: {name}")
    for finding in manifest.assumed:
        print_line(f"  assumed: {finding}")
    if source.checkpoint is None and audited is None:
        print_line("  never audited: flowcheck audit FILE compares it with the trainer's own file")
    return 0


def check_asked(asked: FormatRequest) -> None:
    """Raises ConfigError for what cannot be written, before anything is read."""
    if asked.form not in FORMATS:
        raise ConfigError("--format", asked.form, f"is one of {', '.join(FORMATS)}")
    folder = FORMATS[asked.form].folder
    check_out(asked.out, force=asked.force, folder=folder, spared=asked.spared)


@contextmanager
def opened_step(source: StepSource, step: Step | None) -> Iterator[step_lookup.FoundStep]:
    """The step that is asked for: of a checkpoint folder, else of a run, in place."""
    if source.checkpoint is not None:
        by = step_lookup.code_approval_for(source.checkpoint, source.run, code=source.code)
        yield step_lookup.from_checkpoint(source.checkpoint, step, source.where, lazily=True, by=by)
        return
    with step_lookup.holding(RunDir(source.run), settle=True, step=step) as found:
        yield found


def restore_from(found: step_lookup.FoundStep, asked: FormatRequest) -> WrittenCheckpoint:
    """Writes a step that was found and holds what is written against it. Raises StateError where
    it does not fit or does not read back, OSError where there is no room."""
    parts = parts_in(found, asked.form, asked.options)
    begun_s = time.monotonic()
    with growing_bar(asked.out, _bytes(parts)):
        own = (parts, asked.out, asked.form, asked.options)
        manifest = write(*own, force=asked.force, spared=asked.spared)
    size_bytes = sum(file.bytes for file in manifest.files.values())
    return WrittenCheckpoint(manifest, size_bytes, time.monotonic() - begun_s)


def parts_in(found: step_lookup.FoundStep, form: str, options: FormatOptions) -> CheckpointContents:
    """The step with what an earlier checkpoint tells beside it."""
    whole = found.kept or trainer_state(found.snapshot, assumed=found.assumed)
    like = _template(options.like, found, form) if options.like is not None else None
    return replace(
        contents_of(whole, found.snapshot.layout, like, found.seen), expected=found.expected
    )


def _template(like: Path, found: step_lookup.FoundStep, form: str) -> CheckpointTemplate | None:
    """An earlier checkpoint; None for a model's folder that holds its configuration alone."""
    if form == "huggingface" and (like / "config.json").is_file():
        try:
            detect_format(like)
        except StateError:
            return None
    tree = read(like).tree
    layout = found.snapshot.layout
    rule = found.snapshot.optimizer
    order = optimizer_numbering(rule, layout)
    template = read_template(tree, layout, found.names, str(like), step=Step(0), order=order)
    if form == "megatron":  # whose groups stay those of the earlier folder
        check_settings(template, rule, layout, str(like))
    return template


def _bytes(parts: CheckpointContents) -> int:
    """Of all tensors of a step, as far as they are its own."""
    states = parts.named_states.values()
    held = [value for state in states for value in state.values() if hasattr(value, "nbytes")]
    return sum(tensor.nbytes for tensor in (*parts.own.values(), *held))
