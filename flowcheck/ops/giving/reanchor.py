"""`flowcheck base` of a replica that is followed: it goes on from the trainer's own bits."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from threading import Event

from flowcheck.errors import StateError
from flowcheck.ops.giving import audit as audits
from flowcheck.replica.kept.header import peek_versions
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.anchoring import write_anchor
from flowcheck.stages.updating.anchors import anchor_line
from flowcheck.stages.updating.beside import keep_given
from flowcheck.stages.updating.model import optimizer_in
from flowcheck.vault.audit import Audit
from flowcheck.vault.flat import flat_state
from flowcheck.vault.groups import check_settings
from flowcheck.vault.template import Template
from flowcheck.wire.job_file import decode_job

REACHED_LIMIT_S = 60.0
TAKEN_LIMIT_S = 60.0
LOOK_S = 0.05
EQUAL = "all {} tensors of step {} are the replica's, bit for bit: there is nothing to replace"
SET = (
    "step {} is the trainer's own now ({}), and the {} steps the replica had taken since are taken "
    "again"
)


def reanchor(where: RunDir, file: Path) -> tuple[int, str]:
    """(step, sentence) of what the updater made of a checkpoint of a step that it has taken.

    Raises StateError where the step is not reached in REACHED_LIMIT_S, the file does not hold all
    of the state or tells other settings than are stated, or the updater refused it, with its
    reason, or did not take it in TAKEN_LIMIT_S.
    """
    if "update" not in where.stage_pids():
        raise StateError(
            f"{where.root}: no updater runs there to take a file: flowcheck up JOB.toml"
        )
    template = audits.template_of(where, file)
    check_settings(template, optimizer_in(where), peek_versions(where.replica)[0], str(file))
    if not _until(lambda: _at(where) >= template.step, REACHED_LIMIT_S):
        raise StateError(
            f"{file}: is of step {template.step}, the replica of {where.root} is at {_at(where)} "
            f"and did not come there within {REACHED_LIMIT_S:.0f} s"
        )
    told = "its record of that step is gone"
    if (found := _held_against(where, template, file)) is not None:
        audits.noted(where, found, file, template)
        if found.equal:
            return template.step, EQUAL.format(found.tensors, found.step)
        differing = len(found.differences)
        told = f"{differing} of {found.tensors} tensors differed, {found.differences[0].name} first"
    line = put(where, template, file)
    keep_given(where, template.model, template.step)
    return template.step, SET.format(template.step, told, line - template.step)


def put(where: RunDir, template: Template, file: Path) -> int:
    """Gives it to the updater and waits for it; the step at which that was then. Raises StateError
    as `reanchor`."""
    request = give(where, template, file)
    if not _until(lambda: anchor_line(where, request) is not None, TAKEN_LIMIT_S):
        where.anchor.unlink(missing_ok=True)
        raise StateError(
            f"{where.root}: the updater did not take the file within {TAKEN_LIMIT_S:.0f} s; it is "
            "withdrawn (see flowcheck status)"
        )
    line = anchor_line(where, request)
    assert line is not None
    if line.refused:
        raise StateError(f"{file}: {line.refused}")
    return line.at


def give(where: RunDir, template: Template, file: Path) -> str:
    """Puts its state where the updater takes it; what the request is called. Raises StateError."""
    if where.anchor.exists():
        raise StateError(f"{where.root}: another file is just being taken: try again")
    layout, _ = peek_versions(where.replica)
    job = decode_job(where.learned_job.read_bytes())
    leaves_out = job.mapped or bool(job.never_used)
    sections = flat_state(template, layout, optimizer_in(where), leaves_out=leaves_out)
    request = uuid.uuid4().hex
    write_anchor(where, template.step, sections, str(file), request)
    return request


def _held_against(where: RunDir, template: Template, file: Path) -> Audit | None:
    try:
        return audits.held_against(where, template, file)
    except StateError:
        return None


def _at(where: RunDir) -> int:
    return max(peek_versions(where.replica)[1], default=0)


def _until(done: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            return False
        Event().wait(LOOK_S)
    return True
