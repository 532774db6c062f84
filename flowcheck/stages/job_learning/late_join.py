"""Joining a job that already runs: what is known of it, and staging space to see one iteration.

Known is the job that a run before this one followed, or this one before the capture had a gap.
Nothing of it is believed until the stream bears it out (wire/learn/jobs/late/joined.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from flowcheck._core import lib
from flowcheck.errors import LearnError
from flowcheck.plane.extraction.flow_plan_install import PLAN_UNKNOWN
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.stages.job_learning.remembered_job import REMEMBERED_JOB_FILE, STATED_MODEL_FILE
from flowcheck.stages.job_learning.stream_reading import KnownJob
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.staged_messages.staging_space import staging_fuller_than
from flowcheck.wire.learn.jobs.late.amid import Expected
from flowcheck.wire.learn.jobs.late.joined import START_PSN
from flowcheck.wire.training_job.learned_job import FollowedData, decode_job

STAGING_FULL_SHARE = 0.75
"""Share of staging that what is read and tells nothing yet may fill. A choice: a quarter stays for
what arrives while the rest is dropped."""


def remembered_job_of(run: RunDir) -> KnownJob:
    """The job that was followed before, and the model that is stated."""
    job = model = None
    with suppress(OSError, LearnError):
        kept = decode_job((run.learned_folder / REMEMBERED_JOB_FILE).read_bytes())
        job = kept if kept.kind is FollowedData.GRADIENTS else None
    stated = run.learned_folder / STATED_MODEL_FILE
    if stated.exists():
        model = msgspec.json.decode(stated.read_bytes(), type=Expected)
    return KnownJob(job=job, model=model)


def staging_nearly_full(extractors: Sequence[Extractor]) -> bool:
    """Little room is left for what comes."""
    return any(staging_fuller_than(extractor, STAGING_FULL_SHARE) for extractor in extractors)


def holds_connection_start(extractors: Sequence[Extractor]) -> bool:
    """Of what is staged something is the first that its connection ever carried."""
    for x in extractors:
        if (x.staging.records()["message"]["first_psn"][x.staging.held()] == START_PSN).any():
            return True
    return False


def full_without_start(extractors: Sequence[Extractor]) -> bool:
    """Little room is left, and no job begins in what fills it."""
    return staging_nearly_full(extractors) and not holds_connection_start(extractors)


def release_staged(extractors: Sequence[Extractor]) -> int:
    """Of flows without a plan what is staged is given up, and what comes is staged; returns how
    many messages it was. For a job that is joined anywhere, as it goes on sending."""
    done = 0
    for x in extractors:
        states = x.staging.plans()["state"]
        flows = x.staging.records()["message"]["flow"]
        for index in x.staging.held().tolist():
            if states[flows[index]] == PLAN_UNKNOWN:
                lib.fc_staged_release(x.handle, index)
                done += 1
    return done
