"""The data-parallel jobs of a reading: told apart, for people and for programs."""

from __future__ import annotations

from typing import Any

from flowcheck.stages.learning.fitting import addresses_of
from flowcheck.wire.learn import Part, Reading


def as_dicts(reading: Reading) -> list[dict[str, Any]]:
    """Every data-parallel job that was seen to begin, in that order."""
    return [_as_dict(part) for part in reading.parts]


def _as_dict(part: Part) -> dict[str, Any]:
    job, weights = part.job, part.weights
    return {
        "communicator": part.communicator,
        "learned": job is not None,
        "ranks": job.communicators[0].ranks if job is not None else None,
        "addresses": addresses_of(job) if job is not None else [],
        "parameters": len(job.parameters) if job is not None else None,
        "buckets": [list(bucket) for bucket in job.buckets] if job is not None else [],
        "weights_sha256": weights.sha256 if weights is not None else None,
        "assumed": list(job.assumed) if job is not None else [],
        "why_not": list(part.why_not),
    }


def sentences(reading: Reading) -> list[str]:
    """One for each of several jobs; nothing where there is one, or none."""
    if len(reading.parts) < 2:
        return []
    return [_sentence(number, part) for number, part in enumerate(reading.parts, 1)]


def _sentence(number: int, part: Part) -> str:
    named = f"data-parallel job {number} is communicator {part.communicator}"
    if part.job is None:
        return f"{named}: not followed, {'; '.join(part.why_not)}"
    digest = part.weights.sha256 if part.weights is not None else None
    told = f"initial weights {digest[:8]}" if digest else "initial weights not seen whole"
    return (
        f"{named}: {part.job.communicators[0].ranks} ranks, {len(part.job.parameters)} parameters "
        f"in {len(part.job.buckets)} buckets, {told}, on {', '.join(addresses_of(part.job))}"
    )
