"""Joining a job amid its run: what is known of it from before, and room to see it in.

Known is the job that a run before this one followed, or this one before the capture had a gap.
Nothing of it is believed until the stream bears it out (wire/learn/jobs/late/joined.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from flowcheck._core import lib
from flowcheck.errors import LearnError
from flowcheck.plane.extractor import Extractor
from flowcheck.plane.plans import PLAN_UNKNOWN
from flowcheck.stages.following.room import fuller
from flowcheck.stages.learning.known import EXPECTED, KNOWN_JOB
from flowcheck.stages.learning.outcomes import Known
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import Follows
from flowcheck.wire.job_file import decode_job
from flowcheck.wire.learn.jobs.late.amid import Expected
from flowcheck.wire.learn.jobs.late.joined import START_PSN

JOINED = (
    "the job was joined amid its run: its steps are logged from now on, and wait for a base: with "
    "two checkpoints it writes from here on, flowcheck base FILE --then LATER"
)
GOES_ON = (
    "step {} was not seen whole: the replica stays before it; the gradients of later steps are "
    "kept as soon as a whole one is seen again, and wait for a base (flowcheck base FILE)"
)
NO_ROOM = (
    "three quarters of staging.size_bytes are full: it must hold an iteration and the begin of the "
    "next one"
)
FULL = 0.75
"""Share of staging that what is read and tells nothing yet may fill."""


def known_of(run: RunDir) -> Known:
    """The job that was followed before, and the model that is stated."""
    job = model = None
    with suppress(OSError, LearnError):
        kept = decode_job((run.learned_folder / KNOWN_JOB).read_bytes())
        job = kept if kept.kind is Follows.GRADIENTS else None
    stated = run.learned_folder / EXPECTED
    if stated.exists():
        model = msgspec.json.decode(stated.read_bytes(), type=Expected)
    return Known(job=job, model=model)


def full(extractors: Sequence[Extractor]) -> bool:
    """Little room is left for what comes."""
    return any(fuller(extractor, FULL) for extractor in extractors)


def starts_in(extractors: Sequence[Extractor]) -> bool:
    """Of what is staged something is the first that its connection ever carried."""
    for x in extractors:
        records = x.staging.records()
        if (records["message"]["first_psn"][records["state"] == 1] == START_PSN).any():
            return True
    return False


def full_of_no_start(extractors: Sequence[Extractor]) -> bool:
    """Little room is left, and no job begins in what fills it."""
    return full(extractors) and not starts_in(extractors)


def let_go(extractors: Sequence[Extractor]) -> int:
    """Of flows without a plan what is staged is given up, and what comes is staged; returns how
    many messages it was. For a job that is joined anywhere, as it goes on sending."""
    done = 0
    for x in extractors:
        states = x.staging.plans()["state"]
        for index, record in enumerate(x.staging.records()):
            if record["state"] == 1 and states[record["message"]["flow"]] == PLAN_UNKNOWN:
                lib.fc_staged_release(x.handle, index)
                done += 1
    return done
