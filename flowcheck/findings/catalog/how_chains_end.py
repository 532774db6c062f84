"""Ends of chains: what their replica had come to, why, who asked, and what a killed one left."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_WHERE_LOST = (
    "`flowcheck status{this_run!o}` shows where frames are lost; `flowcheck doctor` and, with the "
    "options of its session, `flowcheck switch check --help` find the cause. `flowcheck base FILE "
    "--then LATER{this_run!o}` makes a replica that stopped go on."
)

# What kept the replica from following to the end.

CAUSE_UNKNOWN = Entry(
    "lost_step.cause_unknown",
    "no cause is recorded",
    cause="The run's record of it is gone.",
    remedy=_WHERE_LOST,
)
CANNOT_BE_REBUILT = Entry(
    "lost_step.cannot_be_rebuilt",
    "step {step} cannot be rebuilt: {why}; the replica stays at step {replica_step}, packets are "
    "still counted",
    section="loss",
    cause="A part of its gradient cannot be had, for the reason in the middle; the replica stops "
    "at the last step that is right.",
    remedy="`flowcheck base FILE --then LATER{this_run!o}` with the trainer's next two "
    "checkpoints makes it go on; until then gradients are logged, if `[gradient_log]` has room.",
)
BYTES_NEVER_CAME = Entry(
    "lost_step.bytes_never_came",
    "bytes {ranges} of its gradient never came ({why})",
    section="loss",
    cause="The reason is that those bytes came from no mirror port, and will not.",
    remedy="Look at what the parentheses name.",
)
MORE_BYTES_NEVER_CAME = Entry(
    "lost_step.more_bytes_never_came",
    "bytes {ranges} and {more} more ranges of its gradient never came ({why})",
)
LOST_AND_STAYS = Entry(
    "outcome.lost_and_stays", "step {step} was lost, and the replica stays at step {replica_step}"
)
NO_BASE_AFTER_JOIN = Entry(
    "outcome.no_base_after_join",
    "the job was joined midstream, and no base was given: none of its steps since then was applied",
    cause="A job that ran before FlowCheck has an unknown state.",
    remedy="Give two checkpoints of the trainer while the chain runs: `flowcheck base FILE --then "
    "LATER{this_run!o}`.",
)
NO_BASE = Entry(
    "outcome.no_base",
    "the job began with an unknown state, and nobody gave it: none of its steps was applied",
    cause="The trainer resumed from a file that FlowCheck never saw.",
    remedy="Give that file with `flowcheck base FILE{this_run!o}` while the chain runs.",
)
NO_CHECKPOINT = Entry(
    "outcome.no_checkpoint",
    "step {lacking} lacks bytes that may matter to every element, and no checkpoint of it or a "
    "later step was given: the replica stays before it",
    section="loss",
    cause="Packets of the step were lost, and the trainer wrote no checkpoint since, or it was not "
    "given.",
    remedy="Restore the replica's last step, or use the trainer's own checkpoint; `[audit] folder` "
    "gives checkpoints by itself while the chain runs.",
)
NO_FRAME = Entry(
    "outcome.no_frame",
    "no frame came from any source",
    section="arrival",
    cause="The capture ran and no frame reached it.",
    remedy="Check that the mirror is switched on and leads here: run on the switch what "
    "`flowcheck switch render --os OS --source PORT --monitor PORT --part "
    "check` prints: is the session up, "
    "does the monitor port have link? A capture port keeps no address, but its link must be up.",
)
NO_COMPLETE_STEP = Entry(
    "outcome.no_complete_step",
    "the job was learned, but no step of it was complete before the end",
    cause="Each step has gaps, or the capture is too short.",
    remedy="Capture longer; `flowcheck analyze FILE...` shows what is missing.",
)
NO_JOB_LEARNED = Entry(
    "outcome.no_job_learned",
    "no job was learned from {frames:,} frames",
    cause="The frames do not tell a job.",
    remedy="`flowcheck analyze FILE...` on the same captures shows what they hold.",
)
INTERRUPTED = Entry("outcome.interrupted", "stopped by a signal before the end of the capture")

# Who ended it, and when.

ASKED_BY = Entry("end.asked_by", "{command} (process {pid}, user {user})")
SIGNAL_INT = Entry("end.signal_int", "Ctrl-C or SIGINT")
SIGNAL_HUP = Entry("end.signal_hup", "its terminal closed (SIGHUP)")
SIGNAL_TERM = Entry("end.signal_term", "SIGTERM, as systemctl stop and kill send it")
SIGNAL_OTHER = Entry("end.signal_other", "signal {number}")
CAPTURES_READ = Entry("end.captures_read", "its captures were read to their end")
TOLD_TO_STOP = Entry("end.told_to_stop", "it was told to stop")
FOUND_KILLED = Entry("end.found_killed", "{finder} found it at {time}; {done}")
ENDED = Entry("end.ended", "the chain that ran in {run} ended at {time}: {by}")
GAVE_UP = Entry("end.gave_up", "the chain that ran in {run} gave up at {time}: {by}")
KILLED = Entry(
    "end.killed", "the chain that ran in {run} was killed, its last sign of life is of {time}: {by}"
)
MEMORY_GONE = Entry(
    "end.memory_gone",
    "the chain that ran in {run} was killed, and its memory is gone, as after a restart of this "
    "machine",
)
MEMORY_GONE_SINCE = Entry(
    "end.memory_gone_since",
    "the chain that ran in {run} was killed, and its memory is gone, as after a restart of this "
    "machine; its last sign of life is of {time}",
)
STAGES_LEFT = Entry(
    "end.stages_left", "the chain that ran in {run} has ended; its stages stopped at {time}"
)
UNEXPLAINED = Entry(
    "end.unexplained", "the chain that ran in {run} has ended; nothing recorded says why"
)

# What became of its replica.

NO_COMMON_STEP = Entry(
    "replica_kept.no_common_step",
    "there is no step that the replicas of all jobs have ({steps}): each is kept as it is, and "
    "together they are no state of one training job",
    section="saving",
    cause="One of several jobs of one model stayed behind.",
    remedy="Restore an earlier step that all have, or give a base.",
)
STEPS_OF_JOB = Entry("replica_kept.steps_of_job", "job {job}: {steps}")
NO_STEPS_OF_JOB = Entry("replica_kept.no_steps_of_job", "job {job}: no step")
NO_CHECKPOINT_THERE = Entry(
    "replica_kept.no_checkpoint_there", "no checkpoint could be written to {folder}: {error}"
)
STAYS_IN_MEMORY = Entry(
    "replica_kept.stays_in_memory",
    "no checkpoint can be written ({error}), so the replica stays in memory",
    also=("run",),
    section="saving",
    cause="The chain has ended, and its last step is in shared memory alone.",
    remedy="Make room, then `flowcheck down{run!o}` writes it; before the machine restarts.",
)
FAILED_AND = Entry("replica_kept.failed_and", "{failure}; and {then}")
KEPT_NOWHERE = Entry(
    "replica_kept.nowhere",
    "the chain that ran in {run} was killed, and its replica can be written nowhere ({error})",
    remedy="Make room and run the command again, or give the replica up: `flowcheck down{run!o} "
    "--discard`.",
)
RESCUED = Entry("replica_kept.rescued", "the chain that ran in {run} was killed; {done}")
REPLICA_KEPT = Entry("replica_kept.kept", "its replica is kept in {folders}")
REPLICA_KEPT_BUT = Entry("replica_kept.kept_but", "its replica is kept in {folders}; {note}")
NO_STEP_TO_KEEP = Entry("replica_kept.no_step", "it had applied no step: there is nothing to keep")
NO_REPLICA_TO_KEEP = Entry(
    "replica_kept.no_replica", "it had no replica yet: there is nothing to keep"
)
NO_MEMORY_TO_KEEP = Entry(
    "replica_kept.no_memory",
    "its shared memory is gone, as after a restart of this machine: there is nothing to keep",
)
DISCARDED = Entry("replica_kept.discarded", "its replica was given up (--discard)")
STAGES_STILL_RUN = Entry(
    "replica_kept.stages_still_run",
    "stages of the killed chain still run: {stages}",
    also=("run",),
    remedy="End them: `flowcheck down{run!o}`.",
)

# Shared memory that killed chains left.

LEFT_REMOVABLE = Entry(
    "leftovers.removable",
    "a killed chain left {mib} MiB of shared memory in {memory}: `flowcheck down --leftovers` "
    "removes it",
)
LEFT_BY_CHAIN = Entry(
    "leftovers.by_chain",
    "the chain in {run} was killed and left {mib} MiB of shared memory: `flowcheck down{run!o}`",
)
LEFT_WITH_REPLICA = Entry(
    "leftovers.with_replica",
    "the chain in {run} was killed and left {mib} MiB of shared memory with its replica: "
    "`flowcheck down{run!o}`",
    section="processes",
    cause="A supervisor was killed (kill -9, out of memory); its replica is still in memory.",
    remedy="`flowcheck restore{run!o} --template FILE --out FILE` gives the step back at once; "
    "`flowcheck up JOB.toml{run!o}` or `flowcheck down{run!o}` write it as a checkpoint first.",
)
LEFT_WITH_REPLAY = Entry(
    "leftovers.with_replica_of_replay",
    "the replay in {run} was killed and left {mib} MiB of shared memory with its replica: "
    "`flowcheck down{run!o}`",
    also=("again",),
    section="processes",
    cause="The supervisor of a replay was killed; its replica is still in memory.",
    remedy="`flowcheck restore{run!o} --template FILE --out FILE` gives the step back at once; "
    "`flowcheck down{run!o}` writes it as a checkpoint; `{again}` reads the captures again.",
)
LEFT_BY_SEVERAL = Entry(
    "leftovers.by_several",
    "{chains} killed chains left {mib} MiB of shared memory: `flowcheck status --leftovers` lists "
    "them",
)
LEFT_REMOVED = Entry("leftovers.removed", "removed {path}: its supervisor was killed")
