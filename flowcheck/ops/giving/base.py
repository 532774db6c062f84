"""`flowcheck base`: the optimizer's state of a job that began with one the replica did not hold."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.ops.giving import anchor
from flowcheck.ops.giving.reanchor import reanchor
from flowcheck.ops.giving.steps import stated_names
from flowcheck.ops.say import say
from flowcheck.replica.kept.header import peek_versions
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules import optimizers
from flowcheck.replica.rules.settings import numbering
from flowcheck.stages.jobs import every
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.base import write_base
from flowcheck.stages.updating.beside import keep_given
from flowcheck.stages.updating.gradients import logged
from flowcheck.stages.updating.incarnation import incarnation_of
from flowcheck.step_numbers import Step
from flowcheck.vault.flat import flat_state
from flowcheck.vault.groups import check_settings
from flowcheck.vault.template import Template, load_template
from flowcheck.wire.job_file import decode_job

TAKEN_LIMIT_S = 60.0
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the log of a job joined amid its run a base belongs, as far as it is said."""

    then: Path | None = None
    """A later checkpoint of the trainer's: only the right place leads to it."""
    after: int | None = None
    """Steps the job took since it was joined until the base, its own included."""


NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Base:
    """A checkpoint that is proved to be a job's base, or stated to be it."""

    template: Template
    sections: dict[str, np.ndarray]
    file: Path
    why: str
    """How that is known."""
    after: int = 0
    """Steps of the job that were logged before it, of one joined amid its run."""


def run(root: Path, file: Path, *, place: Place = NOWHERE, as_json: bool) -> int:
    """Gives the base to a chain that runs, and waits until its updater took it.

    Raises ConfigError without a run, StateError where none waits, where the file is not of the
    step the job began with, or, of a joined job, where its place in the log is not told, or where
    it was not taken in TAKEN_LIMIT_S.
    """
    where = RunDir(root)
    if _followed(where, place):
        step, told = reanchor(where, file)
        if as_json:
            print(json.dumps({"step": step, "file": str(file), "run": str(root), "told": told}))
        else:
            say(f"{file}: {told}")
        return 0
    where, found = take(where, file, place)
    step = found.template.step
    if as_json:
        print(json.dumps({"step": step, "file": str(file), "run": str(where.root)}))
    else:
        of = "" if where.root == root else f" of {where.root}"
        say(
            f"step {step} of {file} is the base{of}: {found.why}; what was logged since is being "
            "taken"
        )
    return 0


def _followed(where: RunDir, place: Place) -> bool:
    """The one replica's state is known: the file is to take the place of its own."""
    where.settings()
    own = len(every(where)) < 2 and where.replica.exists()
    return own and incarnation_of(where).step is not None and place == NOWHERE


def take(where: RunDir, file: Path, place: Place = NOWHERE) -> tuple[RunDir, Base]:
    """As `run`; the job it is the base of, and the base."""
    where.settings()
    runs = every(where)
    own, found = (where, _of_one(where, file, place)) if len(runs) < 2 else _of(runs, file, place)
    _put(own, found)
    _wait(own)
    return own, found


def _of(runs: Sequence[RunDir], file: Path, place: Place) -> tuple[RunDir, Base]:
    """Of several jobs the one that a checkpoint is the base of: no name tells, bytes do."""
    if place.then is None and place.after is not None:
        right = "of several jobs a later checkpoint tells which it is of (--then FILE); --run "
        raise ConfigError("--after", place.after, right + f"{runs[0].root}/jobs/N names one")
    found: list[tuple[RunDir, Base]] = []
    why = []
    for number, own in enumerate(runs, 1):
        try:
            found.append((own, _of_one(own, file, place)))
        except StateError as error:
            why.append(f"job {number}: {error}")
    if len(found) == 1:
        return found[0]
    told = "; ".join(why) if not found else "it is that of several of them"
    raise StateError(f"{file}: which of the jobs it is the base of is not told ({told})")


def _of_one(where: RunDir, file: Path, place: Place) -> Base:
    root, config = where.root, where.settings()
    if not where.replica.exists():
        raise StateError(f"{root}: no job was learned there yet, so nothing waits for a base")
    if incarnation_of(where).step is not None:
        raise StateError(f"{root}: the replica's state is known: nothing waits for a base")
    if "update" not in where.stage_pids():
        raise StateError(f"{root}: no updater runs there to take a base: flowcheck up JOB.toml")
    return proved(where, config, file, place)


def give(
    where: RunDir, config: JobConfig, file: Path, place: Place = NOWHERE
) -> tuple[Template, str]:
    """Puts the state of a checkpoint where the updater takes it, as `proved`; why it is the
    base."""
    found = proved(where, config, file, place)
    _put(where, found)
    return found.template, found.why


def _put(where: RunDir, base: Base) -> None:
    keep_given(where, base.template.model, base.template.step)
    write_base(where, base.template.step, base.sections, str(base.file), after=base.after)


def proved(where: RunDir, config: JobConfig, file: Path, place: Place = NOWHERE) -> Base:
    """The state of a checkpoint, once its parameters are proved to be those the job began with, or
    its place in the log is told. Raises StateError where they are not."""
    assert config.optimizer is not None
    layout, _ = peek_versions(where.replica)
    order = numbering(config.optimizer, layout)
    template = load_template(file, layout, stated_names(layout), order=order)
    check_settings(template, config.optimizer, layout, str(file))
    job = decode_job(where.learned_job.read_bytes())
    leaves_out = job.mapped or bool(job.never_used)
    sections = flat_state(template, layout, config.optimizer, leaves_out=leaves_out)
    if job.joined:
        after, why = _placed(where, config, layout, (template.step, sections), place)
        return Base(template, sections, file, why, after)
    if place != NOWHERE:
        raise StateError(f"{where.root}: the job's start was seen: it tells itself where it began")
    if not where.weights.exists():
        raise StateError(f"{where.root}: the job is being joined again just now")
    began = layout.memory_order(np.fromfile(where.weights, layout.stored_as))
    mine = sections[optimizers.PARAMETERS]
    for p in layout.parameters:
        if mine[p.start : p.stop].tobytes() != began[p.start : p.stop].tobytes():
            raise StateError(
                f"{file}: is not what the job began with: {p.name} of step {template.step} is "
                "another than its start-up broadcast sent"
            )
    why = "its parameters are those the job began with, bit for bit"
    return Base(template, sections, file, why)


def _placed(
    where: RunDir,
    config: JobConfig,
    layout: Layout,
    base: tuple[Step, anchor.Sections],
    place: Place,
) -> tuple[int, str]:
    """(steps since the job was joined until the base, how that is known)."""
    first, last = logged(where, config)
    if place.then is not None:
        assert config.optimizer is not None
        order = numbering(config.optimizer, layout)
        later = load_template(place.then, layout, stated_names(layout), order=order)
        after = anchor.steps_before(where, config, layout, base, later)
        how = f"the {later.step - base[0]} steps logged then lead to {place.then}, bit for bit"
        if place.after in (None, after):
            return after, how
        raise StateError(f"{how}: it is the one after {after} logged steps, not {place.after}")
    if place.after is None:
        raise StateError(
            f"{where.root}: the job was joined amid its run, its steps {first} to {last} since are "
            "logged, and which of them follows this file no frame tells: give the trainer's next "
            "checkpoint as well (--then FILE), or state after how many it was written (--after N)"
        )
    if not first - 1 <= place.after <= last:
        raise StateError(
            f"{where.root}: steps {first} to {last} since the job was joined are logged: what "
            f"follows --after {place.after} is not"
        )
    return place.after, f"as stated it was written after {place.after} steps since it was joined"


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
