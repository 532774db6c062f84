"""The part of a training job that the updater of a replica needs, whatever the source of the
gradients. It comes from the learned job; without one (gradients from a log or from another
machine) a file with only this record replaces it, without connections, collectives and buckets."""

from __future__ import annotations

import msgspec

from flowcheck.errors import DECODE_ERRORS, LearnError
from flowcheck.findings.catalog.refused_files import NOT_A_LEARNED_JOB, UNKNOWN_FORMAT
from flowcheck.findings.finding import Finding
from flowcheck.wire.training_job.learned_job import (
    BufferBroadcast,
    FollowedData,
    HasGradientSizes,
    LearnedJob,
    Parameter,
)

SPEC_FORMAT = 1
"""Version of the file."""


class TrainingSpec(HasGradientSizes, msgspec.Struct, frozen=True, kw_only=True):
    """What the updater needs to know of a training job. Fields and properties are as in
    LearnedJob."""

    kind: FollowedData = FollowedData.GRADIENTS
    parameters: tuple[Parameter, ...]
    """Parameters with gradients in registration order, which is the order of the flat gradient."""
    communicator_ranks: tuple[int, ...]
    """[communicator] number of ranks; the first is the data-parallel world size."""
    padding: tuple[Parameter, ...] = ()
    gradient_element_bytes: int = 0
    has_usage_map: bool = msgspec.field(default=False, name="mapped")
    unused_parameters: tuple[int, ...] = msgspec.field(default=(), name="never_used")
    unchanged_buffers: tuple[int, ...] = msgspec.field(default=(), name="still")
    buffer_broadcasts: tuple[BufferBroadcast, ...] = msgspec.field(default=(), name="held")
    weights_missing: tuple[tuple[int, int], ...] = ()
    awaits_base: bool = msgspec.field(default=False, name="joined")
    start_unknown: bool = False
    evidence: tuple[Finding, ...] = ()
    assumed: tuple[Finding, ...] = ()
    copied: bool = False
    """`assumed` is all that the replica rests on, as the chain said that it is a copy of."""
    format: int = SPEC_FORMAT


TrainingFacts = LearnedJob | TrainingSpec
"""The facts about a training job that the updater reads: from a learned job or a specification."""


def without_connections(job: LearnedJob) -> TrainingSpec:
    """The specification of a learned job."""
    return TrainingSpec(
        kind=job.kind,
        parameters=job.parameters,
        padding=job.padding,
        communicator_ranks=job.communicator_ranks,
        gradient_element_bytes=job.gradient_element_bytes,
        has_usage_map=job.has_usage_map,
        unused_parameters=job.unused_parameters,
        unchanged_buffers=job.unchanged_buffers,
        buffer_broadcasts=job.buffer_broadcasts,
        weights_missing=job.weights_missing,
        awaits_base=job.awaits_base,
        start_unknown=job.start_unknown,
        evidence=job.evidence,
        assumed=job.assumed,
    )


def encode_spec(spec: TrainingSpec) -> bytes:
    """The specification as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=1)


def decode_spec(text: bytes) -> TrainingSpec:
    """Decodes a file of `encode_spec`. Raises LearnError for anything else."""
    try:
        found = msgspec.json.decode(text, type=TrainingSpec)
    except DECODE_ERRORS as error:
        raise LearnError(NOT_A_LEARNED_JOB(error)) from error
    if found.format != SPEC_FORMAT:
        raise LearnError(UNKNOWN_FORMAT(format=found.format, newest=SPEC_FORMAT))
    return found
