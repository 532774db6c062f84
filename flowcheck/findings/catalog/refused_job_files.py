"""Why a file is no learned job."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NOT_A_LEARNED_JOB = Entry("learned_job.not_one", "not a learned job: {error}")
UNKNOWN_FORMAT = Entry(
    "learned_job.unknown_format",
    "the learned job is of format {format}; this release reads formats up to {newest}",
    remedy="Read it with the FlowCheck release that wrote it.",
)
ALGORITHM_NOT_FOLLOWED = Entry(
    "learned_job.algorithm_not_followed",
    "a learned job has a collective by {algorithm}: not followed",
)
NEVER_BY_ALGORITHM = Entry(
    "learned_job.never_by_algorithm",
    "a learned job has a {kind} by {algorithm}, which NCCL never makes",
)
