"""FlowCheck: a checkpoint of every training step, taken from mirrored all-reduce traffic."""

from __future__ import annotations

from os import PathLike
from typing import Any

from flowcheck.step_numbers import Step

__version__ = "0.1.0"


def load(
    where: str | PathLike[str],
    step: Step | None = None,
    format: str | None = None,
    token_file: str | PathLike[str] | None = None,
    ca: str | PathLike[str] | None = None,
    *,
    allow_tainted: bool = False,
    despite_audit: bool = False,
    run: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """Loads one step into memory, in the form that torch.load returns: {"model", "optimizer",
    "scheduler", "scaler", "averages", "step"}, each as far as the step has it.

    where: a run directory, a checkpoint folder, a folder of checkpoint folders, a file or folder
        of any format that FlowCheck reads (the result is then what its writer put there), the URL
        of a `flowcheck serve` (http://host:port), or the target of a job's [persist].
    step: the step to load; by default the newest one without tainted elements.
    allow_tainted: also a step of which elements rest on bytes that no mirror brought; its manifest,
        or `flowcheck status`, says which.
    despite_audit: also a step that is not proved exact since an audit found the replica different
        from a file of the trainer.
    run: the run directory of the job that saved a checkpoint, if `where` is one: an audit that
        failed since it was saved is known there alone. Not needed for a checkpoint below a run
        directory.
    format: the format's name, for files whose format cannot be recognised.
    token_file: the file that holds the bearer token of `flowcheck serve`.
    ca: the CA bundle (PEM) that the server's certificate is checked with (https only); by default
        the CAs that this machine trusts.

    What FlowCheck wrote is compared with its checksums before it is returned. No code in a
    checkpoint is run, nor any code that a checkpoint names. For a run directory the schedule and
    the model factory of its job file are called, with this process's rights, unless the directory
    belongs to another user.

    Raises flowcheck.errors.StateError if there is no such step, it is tainted or in doubt, or a
    tensor is damaged (the message names it), ConfigError for an unknown format.
    """
    from flowcheck.ops.restore.load_step import load as load_step

    return load_step(
        where,
        step,
        format,
        token_file,
        ca,
        allow_tainted=allow_tainted,
        despite_audit=despite_audit,
        run=run,
    )
