"""Which job a chain follows, and why it follows none yet."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_OTHER_MODEL_SEEN = (
    "The job that passes these ports is not the one that this chain followed or was told of."
)
_READER_ENDED = "The process that learns the job ended before it had an answer."

# A job that was read is not the one that the job file states.

HOSTS_NOT_USED = Entry(
    "following.hosts_not_used",
    "the job file states hosts = {hosts}, but {job} uses {addresses}: it has no connection to "
    "{missing}, as far as the mirrored ports show",
    remedy="State addresses that `flowcheck analyze FILE...` prints for the job.",
)
JOB_READ = Entry("following.job_read", "the job that was read")
ONLY_JOB = Entry("following.only_job", "the data-parallel job seen")
NEAREST_JOB = Entry("following.nearest_job", "the nearest of the data-parallel jobs seen")
OTHER_SIZES = Entry(
    "following.other_sizes",
    "the parameters of the job that was read have other sizes than those of the stated model",
)
SEVERAL_JOBS_FIT = Entry(
    "following.several_jobs_fit",
    "a job fits what is stated for several of the jobs",
    remedy="State `hosts` that only one of them uses.",
)
WEIGHTS_NEVER_HELD = Entry(
    "following.weights_never_held",
    "a job that appeared began with weights that the replica never held",
    cause=_OTHER_MODEL_SEEN,
    remedy="Give `flowcheck base FILE{this_run!o}` with the checkpoint it began from, or follow "
    "it with a chain of its own.",
)
WEIGHTS_OF_ANOTHER = Entry(
    "following.weights_of_another",
    "a job that appeared began with weights that the replica of another job held",
    cause=_OTHER_MODEL_SEEN,
    remedy="State `hosts` for each `[[job]]`, so that each replica takes its own job.",
)

# Why no job is learned.

NO_READING_YET = Entry(
    "following.no_reading_yet",
    "the collectives seen so far do not show which training job this is",
    cause="Start-up and a whole iteration have not passed.",
    remedy="Wait one iteration. If training ran before FlowCheck: "
    "[coming late](../../stages/README.md).",
    section="learning",
)
WEIGHTS_NOT_SEEN = Entry(
    "following.weights_not_seen",
    "the initial weights were not seen whole, so no replica can start",
    cause="The start-up broadcast did not come whole: FlowCheck started late, or a part was lost "
    "on the way.",
    remedy="State the model and join the job midstream, or give the trainer's checkpoint with "
    "`flowcheck base FILE{this_run!o}`.",
    section="learning",
)
NOT_THE_BUCKET_PLAN = Entry(
    "following.not_the_bucket_plan",
    "the collectives read so far are not those of the bucket plan",
    cause="The start-up was seen, and then other collectives than its buckets.",
    remedy="Wait one iteration; if this stays, state the model: `[model] factory`.",
)
READING_KILLED = Entry(
    "following.reading_killed",
    "the process that reads the stream was killed by signal {signal}",
    cause=_READER_ENDED,
    remedy="It is tried again. If the kernel killed it for memory (`dmesg`), free memory or lower "
    "`[staging] size_bytes`.",
)
READING_EXITED = Entry(
    "following.reading_exited",
    "the process that reads the stream ended with code {code}",
    cause=_READER_ENDED,
    remedy="It is tried again. If this stays, read the log of the extract stage in the run "
    "directory and report it.",
)
NO_OTHER_JOB = Entry(
    "following.no_other_job",
    "no data-parallel job was seen on these ports beside those that are followed",
    remedy="State as many jobs as there are: `jobs` in the job file, or `--jobs` of replay.",
)
STAGING_TOO_SMALL = Entry(
    "following.staging_too_small",
    "three quarters of staging.size_bytes are full: staging must hold an iteration and the "
    "beginning of the next one",
    cause="An iteration is larger than the staging file.",
    remedy="`flowcheck plan job.toml` names the size; state it in `[staging]` and start again.",
    section="learning",
)
NO_JOB_SO_FAR = Entry(
    "following.no_job_so_far",
    "no job is learned so far: {reasons}",
    cause="Frames are read, and do not prove a job yet; the rest of the sentence says which part "
    "is missing.",
    remedy="What is missing has an advice of its own, which `flowcheck status{this_run!o}` shows; "
    "with a stated model (`[model] factory`) less must be seen.",
    section="learning",
)
STAGING_FULL = Entry("following.staging_full", "staging is full and no job is proved: {reasons}")
STAGING_FULL_BEFORE_TURN = Entry(
    "following.staging_full_before_turn", "staging is full, and no job before this one is proved"
)
NO_JOB_LEARNED = Entry("following.no_job_learned", "no job was learned: {reasons}")

# What an operator is told.

JOINED = Entry(
    "following.joined",
    "the job was joined midstream: its steps are logged from now on, and wait for a base",
    remedy="Give two checkpoints that the trainer writes from here on: `flowcheck base FILE --then "
    "LATER{this_run!o}`.",
)
BEGINS_UNSEEN = Entry(
    "following.begins_unseen",
    "the weights that the job began with never cross the network: its steps are logged, and wait "
    "for a base",
    remedy="Give the checkpoint that the trainer began with: `flowcheck base FILE{this_run!o}`; or "
    "state `seed` in `[sharded]` before the next start.",
)
FURTHER_JOBS = Entry(
    "following.further_jobs",
    "{further} more data-parallel jobs pass these ports and are not followed: jobs = {jobs} in the "
    "job file (replay --jobs) keeps a replica for each",
    cause="Several jobs share the mirrored port.",
    remedy="State `jobs`, or a `[[job]]` with `hosts` for each.",
    section="learning",
)
FLOWS_OF_NO_JOB = Entry(
    "following.flows_of_no_job",
    "{flows} flows are of no data-parallel job: they are counted and not kept",
)
