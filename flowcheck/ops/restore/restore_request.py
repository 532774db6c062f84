"""What `flowcheck restore` is asked for. The command line makes the value, once; all that restores
a step is given that one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_restores import BUFFERS_OF_A_FILE, TEMPLATE_OR_FORMAT
from flowcheck.findings.finding import Finding
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats.format_registry import (
    FORMATS,
    NO_OPTIONS,
    FormatOptions,
    check_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSource:
    """Where a step is: at a URL, else in a checkpoint folder, else in a run directory."""

    run: Path | None = None
    """What it states counts for a checkpoint that somebody names as well."""
    job: str | None = None
    """Of several in the run: its number, or its name."""
    checkpoint: Path | None = None
    """A step's folder, or one of them."""
    url: str | None = None
    token_file: Path | None = None
    authority: Path | None = None
    """Of https: a file of PEM."""
    step: Step | None = None
    """None: the newest."""
    code: bool = False
    """Code that the checkpoint names is run: the user vouches for it."""
    shown_as: str | None = None
    """What the checkpoint's folder is called to the user."""

    @property
    def is_run(self) -> bool:
        return self.checkpoint is None and self.url is None

    @property
    def chain(self) -> RunDir | None:
        """The run directory that the step is taken from."""
        return RunDir(self.run) if self.is_run and self.run is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """A step, as a checkpoint of a named format or in the form of the trainer's own."""

    source: StepSource
    out: Path
    templates: tuple[Path, ...] = ()
    """Checkpoints the trainer wrote, of several jobs one of each."""
    form: str | None = None
    """Instead of a template: of a format."""
    options: FormatOptions = NO_OPTIONS
    also: tuple[Path, ...] = ()
    """More checkpoints of the trainer's, of other steps."""
    force: bool = False
    """It takes the place of an output of ours."""
    warm: bool = False
    """It is read into memory at the end."""

    @property
    def trainer_files(self) -> tuple[Path, ...]:
        """Checkpoints of the trainer that are to be filled, or looked into."""
        like = () if self.options.like is None else (self.options.like,)
        return (*self.templates, *like, *self.also)

    def check(self) -> None:
        """Raises ConfigError for an option that would do nothing."""
        check_options(self.options, self.form)
        if self.also and not (self.templates or self.options.like):
            raise ConfigError("--also", str(self.also[0]), BUFFERS_OF_A_FILE())


def missing_form() -> Finding:
    """What to give if neither a template nor a format is given."""
    return TEMPLATE_OR_FORMAT(tuple(FORMATS))
