"""What a replica's updater must know of a training job, whoever brings the gradients.

A learned job tells it. Where none is (gradients come from a file, or from another machine) a file
of this alone stands in its place: no connections, collectives or buckets.
"""

from __future__ import annotations

import msgspec

from flowcheck.errors import DECODE_ERRORS, LearnError
from flowcheck.findings.catalog.refused_job_files import NOT_A_LEARNED_JOB, UNKNOWN_FORMAT
from flowcheck.findings.finding import Finding
from flowcheck.wire.training_job.learned_job import (
    BufferBroadcast,
    FollowedData,
    HasGradientSizes,
    LearnedJob,
    Parameter,
)

SPEC_FORMAT = 1
"""Of the file."""


class TrainingSpec(HasGradientSizes, msgspec.Struct, frozen=True, kw_only=True):
    """Each field and property is as LearnedJob has it."""

    kind: FollowedData = FollowedData.GRADIENTS
    parameters: tuple[Parameter, ...]
    """In registration order, which is that of the flat gradient."""
    communicator_ranks: tuple[int, ...]
    """Ranks of each communicator; the first one's is the world size of data-parallel training."""
    gradient_element_bytes: int = 0
    has_usage_map: bool = msgspec.field(default=False, name="mapped")
    unused_parameters: tuple[int, ...] = msgspec.field(default=(), name="never_used")
    unchanged_buffers: tuple[int, ...] = msgspec.field(default=(), name="still")
    buffer_broadcasts: tuple[BufferBroadcast, ...] = msgspec.field(default=(), name="held")
    awaits_base: bool = msgspec.field(default=False, name="joined")
    evidence: tuple[Finding, ...] = ()
    assumed: tuple[Finding, ...] = ()
    format: int = SPEC_FORMAT


TrainingFacts = LearnedJob | TrainingSpec
"""Either tells the updater all that it must know."""


def spec_of(job: LearnedJob) -> TrainingSpec:
    """What is left of a learned job without its connections."""
    return TrainingSpec(
        kind=job.kind,
        parameters=job.parameters,
        communicator_ranks=job.communicator_ranks,
        gradient_element_bytes=job.gradient_element_bytes,
        has_usage_map=job.has_usage_map,
        unused_parameters=job.unused_parameters,
        unchanged_buffers=job.unchanged_buffers,
        buffer_broadcasts=job.buffer_broadcasts,
        awaits_base=job.awaits_base,
        evidence=job.evidence,
        assumed=job.assumed,
    )


def encode_spec(spec: TrainingSpec) -> bytes:
    """JSON, readable as it is."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=1)


def decode_spec(text: bytes) -> TrainingSpec:
    """Raises LearnError for anything `encode_spec` did not write."""
    try:
        found = msgspec.json.decode(text, type=TrainingSpec)
    except DECODE_ERRORS as error:
        raise LearnError(NOT_A_LEARNED_JOB(error)) from error
    if found.format != SPEC_FORMAT:
        raise LearnError(UNKNOWN_FORMAT(format=found.format, newest=SPEC_FORMAT))
    return found
