"""A learned job as a file: JSON, readable as it is."""

from __future__ import annotations

import msgspec

from flowcheck.errors import MALFORMED, LearnError
from flowcheck.wire.job import FORMAT, Job


def encode_job(job: Job) -> bytes:
    """JSON, readable as it is."""
    return msgspec.json.format(msgspec.json.encode(job), indent=1)


def decode_job(text: bytes) -> Job:
    """Raises LearnError for anything `encode_job` did not write."""
    try:
        job = msgspec.json.decode(text, type=Job)
    except MALFORMED as error:
        raise LearnError(f"not a learned job: {error}") from error
    if job.format != FORMAT:
        raise LearnError(f"learned job of format {job.format}; this release reads {FORMAT}")
    return job
