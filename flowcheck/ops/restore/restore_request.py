"""The request of `flowcheck restore`. The command line makes it once, and all functions that
restore a step take it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_restores import (
    BUFFERS_OF_A_FILE,
    GRADIENTS_OF_A_SAVE,
    TEMPLATE_OR_FORMAT,
)
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
    """Where a step is read from: a URL, else a checkpoint folder, else a run directory."""

    run: Path | None = None
    """Run directory. With a checkpoint folder too, code that the run's settings name may be run for
    it."""
    job: str | None = None
    """Number or name of one of several jobs in the run."""
    checkpoint: Path | None = None
    """Folder of a step, or folder of such folders."""
    gradients: Path | None = None
    """Folder of the gradients of applied steps, from which steps behind the checkpoint are made
    again."""
    url: str | None = None
    token_file: Path | None = None
    authority: Path | None = None
    """CA bundle (PEM) for https."""
    step: Step | None = None
    """The step; None: the newest."""
    digest: str | None = None
    """With a URL: digest of the state that this step must have; None: whichever it has."""
    code: bool = False
    """True: the user trusts the code that the checkpoint names, and it is run."""
    allow_tainted: bool = False
    """True: a step may be given of which elements rest on bytes that never came."""
    shown_as: str | None = None
    """Name of the checkpoint's folder in messages; None: its path."""
    doubts: tuple[Finding, ...] = ()
    """What the server from which the checkpoint was downloaded says against it."""

    @property
    def is_run(self) -> bool:
        return self.checkpoint is None and self.url is None

    @property
    def chain(self) -> RunDir | None:
        """The run directory from which the step is read; None: it is read from elsewhere."""
        return RunDir(self.run) if self.is_run and self.run is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """A request to write a step in a named format, or in the form of the trainer's checkpoints."""

    source: StepSource
    output: Path
    templates: tuple[Path, ...] = ()
    """Checkpoints of the trainer whose form the output has; one for each job."""
    form: str | None = None
    """Name of the format, in place of a template."""
    options: FormatOptions = NO_OPTIONS
    also: tuple[Path, ...] = ()
    """Further checkpoints of the trainer at other steps, as evidence about buffers."""
    force: bool = False
    """True: the output may replace an earlier output of FlowCheck."""
    despite_audit: bool = False
    """True: a step that is in doubt since an audit failed is restored all the same."""
    warm: bool = False
    """True: the output is read into the page cache at the end."""

    @property
    def trainer_files(self) -> tuple[Path, ...]:
        """All checkpoints of the trainer that the request names."""
        like = () if self.options.like is None else (self.options.like,)
        return (*self.templates, *like, *self.also)

    def check(self) -> None:
        """Raises ConfigError for an option that would do nothing."""
        check_options(self.options, self.form)
        if self.source.gradients is not None and self.source.checkpoint is None:
            raise ConfigError("--gradients", str(self.source.gradients), GRADIENTS_OF_A_SAVE())
        if self.also and not (self.templates or self.options.like):
            raise ConfigError("--also", str(self.also[0]), BUFFERS_OF_A_FILE())


def missing_form() -> Finding:
    """The finding that neither a template nor a format is given."""
    return TEMPLATE_OR_FORMAT(tuple(FORMATS))
