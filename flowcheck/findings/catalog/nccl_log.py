"""What NCCL's log says of the rings, and why it says nothing."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_RINGS = Entry(
    "nccl_log.no_rings",
    "NCCL's log tells no ring: rank 0 prints them (lines such as \"NCCL INFO Channel 00/02 : 0 1 2 "
    '3"), where NCCL_DEBUG=INFO is set and NCCL_DEBUG_SUBSYS does not leave INIT out',
    remedy="Give the log of rank 0, of a run with `NCCL_DEBUG=INFO` and INIT in "
    "`NCCL_DEBUG_SUBSYS`.",
)
ANOTHER_JOB = Entry(
    "nccl_log.another_job",
    "NCCL's log tells rings of {logged} ranks, and those seen have {seen}: FlowCheck does not use "
    "it, as the log of another job; name this one's",
    remedy="Name this job's own log: `nccl_log` in the job file, or `analyze --nccl-log`.",
)
