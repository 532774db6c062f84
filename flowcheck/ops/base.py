"""`flowcheck base`: the optimizer's state of a job that began with one the replica did not hold."""

from __future__ import annotations

import json
import time
from pathlib import Path
from threading import Event

import numpy as np
from rich.console import Console

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.ops.steps import stated_names
from flowcheck.replica import optimizers
from flowcheck.replica.header import peek_versions
from flowcheck.stages.base import write_base
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.succession import incarnation_of
from flowcheck.vault.flat import flat_state
from flowcheck.vault.template import Template, load_template
from flowcheck.wire.job import decode_job

TAKEN_LIMIT_S = 60.0
LOOK_S = 0.05


def run(root: Path, file: Path, *, as_json: bool) -> int:
    """Gives the base to a chain that runs, and waits until its updater took it.

    Raises ConfigError without a run, StateError where none waits, where the file is not of the
    step the job began with, or where it was not taken in TAKEN_LIMIT_S.
    """
    where = RunDir(root)
    config = where.settings()
    if not where.replica.exists():
        raise StateError(f"{root}: no job was learned there yet, so nothing waits for a base")
    if incarnation_of(where).step is not None:
        raise StateError(f"{root}: the replica's state is known: nothing waits for a base")
    if "update" not in where.stage_pids():
        raise StateError(f"{root}: no updater runs there to take a base: flowcheck up JOB.toml")
    template = give(where, config, file)
    _wait(where)
    if as_json:
        print(json.dumps({"step": template.step, "file": str(file)}))
    else:
        Console(highlight=False, soft_wrap=True).print(
            f"step {template.step} of {file} is the base: its parameters are those the job began "
            "with, bit for bit; what was logged since is being taken"
        )
    return 0


def give(where: RunDir, config: JobConfig, file: Path) -> Template:
    """Puts the state of a checkpoint where the updater takes it, once its parameters are proved to
    be those the job began with. Raises StateError where they are not."""
    assert config.optimizer is not None
    layout, _ = peek_versions(where.replica)
    template = load_template(file, layout, stated_names(layout))
    job = decode_job(where.learned_job.read_bytes())
    leaves_out = job.mapped or bool(job.never_used)
    sections = flat_state(template, layout, config.optimizer, leaves_out=leaves_out)
    began = layout.memory_order(np.fromfile(where.weights, layout.stored_as))
    mine = sections[optimizers.PARAMETERS]
    for p in layout.parameters:
        if mine[p.start : p.stop].tobytes() != began[p.start : p.stop].tobytes():
            raise StateError(
                f"{file}: is not what the job began with: {p.name} of step {template.step} is "
                "another than its start-up broadcast sent"
            )
    write_base(where, template.step, sections, str(file))
    return template


def _wait(where: RunDir) -> None:
    deadline_s = time.monotonic() + TAKEN_LIMIT_S
    while where.base.exists():
        if time.monotonic() > deadline_s:
            where.base.unlink(missing_ok=True)
            raise StateError(
                f"{where.root}: the updater did not take the base within {TAKEN_LIMIT_S:.0f} s; "
                "it is withdrawn (see flowcheck status)"
            )
        Event().wait(LOOK_S)
    if incarnation_of(where).step is None:
        raise StateError(f"{where.root}: the updater refused the base: see {where.events}")
