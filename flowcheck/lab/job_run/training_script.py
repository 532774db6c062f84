"""The lab's training script from outside: options that the lab sets itself, and names of its
checkpoints."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.lab_runs import OPTION_DECIDED
from flowcheck.findings.catalog.refused_lab_options import SCRIPT_REFUSES
from flowcheck.lab.job_run.run_plan import script_module
from flowcheck.step_numbers import Step

PROBE_VALUES = {
    "steps": "-1",
    "out": "/untold",
    "stop-at": "-1",
    "resume": "/untold",
    "digests": "/untold",
    "backend": "untold",
    "save-every": "-1",
    "saves": "/untold",
    "save-with": "torch",
}
"""Option of the script -> value that remains only if the user did not set it."""

_SAME = {
    "steps": "say --steps before `--`",
    "out": "say --out before `--`",
    "digests": "the lab names that file itself",
    "saves": "the lab names that folder itself",
    "backend": "the switch sees no backend's traffic but that of the lab's own",
}
_WHOLE = {
    "stop-at": "--steps before `--` says where the run ends",
    "resume": "every run begins at its first step",
}
OPTIONS_SET_BY_LAB: Mapping[str, Mapping[str, str]] = {
    "train": _SAME
    | {
        "stop-at": "--steps before `--` says where the run ends, --kill-at where it is killed",
        "resume": "it resumes from what the replica gives back; --kill-at before `--` says when",
        "save-with": "a step is given back in the form of torch.save's file",
    },
    "record": _SAME | {"out": "the lab names that folder itself"},
    "cost": _SAME
    | _WHOLE
    | {
        "save-every": "the cases that are compared differ in it",
        "save-with": "the cases that are compared differ in it",
    },
}
"""Command -> {option of the script that the lab sets itself: what to use instead}."""


def check_arguments(verb: str, arguments: Sequence[str]) -> None:
    """Checks a user's arguments for the training script with the script's own parser, which also
    accepts `--step=9` and `--st 9`. verb: the lab command. Raises FlowCheckError for an option
    that the lab sets itself, ConfigError for arguments that the script refuses."""
    before = _values(())
    given = _values(arguments)
    for option, instead in OPTIONS_SET_BY_LAB[verb].items():
        if given[option] != before[option]:
            raise FlowCheckError(OPTION_DECIDED(option=option, verb=verb, instead=instead))


def _values(arguments: Sequence[str]) -> dict[str, Any]:
    """Of the options of UNTOLD, where `arguments` come last."""
    words = [f"--{option}={value}" for option, value in PROBE_VALUES.items()]
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            found = vars(script_module().arguments([*words, *arguments]))
    except SystemExit as error:
        if not error.code:
            raise  # --help
        right = said.getvalue().strip().rpartition("error: ")[2]
        given = " ".join(arguments)
        raise ConfigError("arguments", given, SCRIPT_REFUSES(right)) from error
    return {option: found[option.replace("-", "_")] for option in PROBE_VALUES}


_NAME = re.compile(r"step-(\d+)(\.pt)?")
"""A file of torch.save, or a folder of DCP."""


def checkpoint_path(folder: Path, step: Step) -> Path:
    """Path of the checkpoint of `step`."""
    return folder / f"step-{step}.pt"


def checkpoint_step(path: Path) -> Step | None:
    """Step of a checkpoint file or folder of the script; None: another name."""
    found = _NAME.fullmatch(path.name)
    return Step(int(found[1])) if found else None


def checkpoints_by_step(folder: Path) -> dict[Step, Path]:
    """{step: its file or folder} of all checkpoints in a folder, ascending."""
    found = {checkpoint_step(path): path for path in folder.glob("step-*")}
    return {step: found[step] for step in sorted(step for step in found if step is not None)}
