"""Why a file is no learned job."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NOT_A_LEARNED_JOB = Entry(
    "learned_job.not_one",
    "not a learned job: {error}",
    cause="The file is damaged, or of another program or release.",
    remedy="Remove it: the job is learned again from its start-up.",
)
UNKNOWN_FORMAT = Entry(
    "learned_job.unknown_format",
    "the learned job is of format {format}; this release reads formats up to {newest}",
    remedy="Read it with the FlowCheck release that wrote it.",
)
ALGORITHM_NOT_FOLLOWED = Entry(
    "learned_job.algorithm_not_followed",
    "a learned job has a collective by {algorithm}: not followed",
    cause="A later release of FlowCheck wrote the file, or it is damaged.",
    remedy="Learn the job again, or use the release that wrote it.",
)
NEVER_BY_ALGORITHM = Entry(
    "learned_job.never_by_algorithm",
    "a learned job has a {kind} by {algorithm}, which NCCL never makes",
    cause="The file is damaged, or was changed.",
    remedy="Remove it: the job is learned again from its start-up.",
)
