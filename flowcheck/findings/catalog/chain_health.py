"""Health of a chain and of its jobs: why a replica is exact, behind, tainted or stale."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_FRAMES_LOST = "Frames of the step were lost on the way to this machine or in it."

# Of the chain: its processes, its ports, what cannot be read.

NOT_READ = Entry("health.not_read", "it is being read")
NO_CHAIN = Entry(
    "health.no_chain",
    "no chain was started there",
    remedy="Start one: `flowcheck up JOB.toml{this_run!o}`.",
)
READ_FAILED = Entry(
    "health.read_failed",
    "{what} cannot be read just now: {error}",
    also=("part", "name"),
)
NOT_READABLE = Entry(
    "health.not_readable",
    "{path}: {error}",
    cause="The chain runs as another user.",
    remedy="Run `flowcheck status{this_run!o}` as the chain's user or as root.",
)
PROBLEMS = Entry("health.problems", "{problems}")
NO_JOB = Entry("health.no_job", "no job can be read")
OF_JOB = Entry("health.of_job", "{job}: {reason}")
SUPERVISOR_GONE = Entry(
    "health.supervisor_gone",
    "the supervisor is gone: nothing is captured; the replica is still in memory",
    cause="The supervisor was killed; nothing follows the job.",
    remedy="`flowcheck down{this_run!o}` saves the replica as a checkpoint, and so does "
    "`flowcheck up JOB.toml{this_run!o}`, which follows a live job again; "
    "`flowcheck restore{this_run!o} --template FILE --out FILE` gives the step at once.",
)
SUPERVISOR_GONE_NO_STEP = Entry(
    "health.supervisor_gone_no_step",
    "the supervisor is gone: nothing is captured; no step was applied, so there is no replica to "
    "keep",
    cause="The supervisor was killed; nothing follows the job.",
    remedy="`flowcheck down{this_run!o}` removes what is left; `flowcheck up JOB.toml{this_run!o}` "
    "follows a live job again.",
)
SUPERVISOR_GONE_NO_REPLICA = Entry(
    "health.supervisor_gone_no_replica",
    "the supervisor is gone: nothing is captured; the replica's shared memory is gone too",
    cause="The supervisor was killed, and the machine began anew or the memory was removed.",
    remedy="`flowcheck restore{this_run!o} --template FILE --out FILE` gives the newest exact step "
    "that `[persist]` saved; `flowcheck up JOB.toml{this_run!o}` follows a live job again.",
)
REPLAY_SUPERVISOR_GONE = Entry(
    "health.supervisor_gone_of_replay",
    "the supervisor of the replay is gone: its captures are read no further; the replica is still "
    "in memory",
    also=("again",),
    cause="The supervisor was killed.",
    remedy="`flowcheck down{this_run!o}` saves the replica as a checkpoint; `{again}` reads the "
    "captures again; `flowcheck restore{this_run!o} --template FILE --out FILE` gives the step at "
    "once.",
)
REPLAY_SUPERVISOR_GONE_NO_REPLICA = Entry(
    "health.supervisor_gone_of_replay_no_replica",
    "the supervisor of the replay is gone: its captures are read no further; the replica's shared "
    "memory is gone too",
    also=("again",),
    cause="The supervisor was killed, and the machine began anew or the memory was removed.",
    remedy="`{again}` reads the captures again; `flowcheck restore{this_run!o} --template FILE "
    "--out FILE` gives the newest exact step that `[persist]` saved.",
)
REPLAY_SUPERVISOR_GONE_NO_STEP = Entry(
    "health.supervisor_gone_of_replay_no_step",
    "the supervisor of the replay is gone: its captures are read no further; no step was applied, "
    "so there is no replica to keep",
    also=("again",),
    cause="The supervisor was killed.",
    remedy="`flowcheck down{this_run!o}` removes what is left; `{again}` reads the captures again.",
)
SUPERVISOR_HANGS = Entry(
    "health.supervisor_hangs",
    "the supervisor does not respond: its last heartbeat is {seconds} s old",
    cause="The supervisor is stopped or gets no processor.",
    remedy="See its process (`ps`), the load and the memory; if it stays, `flowcheck "
    "down{this_run!o}`, then `flowcheck up JOB.toml{this_run!o}`.",
)
HEARTBEAT_BEFORE_BOOT = Entry(
    "health.heartbeat_before_boot",
    "the supervisor does not respond: its last heartbeat is from before this machine started",
    cause="The machine was restarted since, and the replica's memory is gone.",
    remedy="`flowcheck restore --checkpoint FOLDER --template FILE --out FILE` gives the last "
    "saved "
    "step; `flowcheck up JOB.toml{this_run!o}` "
    "follows the job again.",
)
CHAIN_STARTS = Entry("health.chain_starts", "the chain is starting")
CHAIN_ENDS = Entry("health.chain_ends", "the chain is ending: it applies no more steps")
NO_LINK = Entry(
    "health.no_link",
    "no link at {ports} for {seconds} s: no frame arrives there, and what passes meanwhile is lost",
    remedy="Check the cable, the transceiver and the switch's monitor port.",
)
NO_LINK_AND = Entry("health.no_link_and", "{no_link}. {reason}")
NO_LINK_LEFT = Entry("health.no_link_left", "{no_link}. Before that it was {word}: {reason}")
STAGES_TO_START = Entry("health.stages_to_start", "stage {stages} starts once the others are up")
STAGES_RESTART = Entry(
    "health.stages_restart",
    "stage {stages} died, and the supervisor starts it again",
    cause="The stage died.",
    remedy="It is started again; if this stays, read its log in the run directory.",
)
STAGES_GONE = Entry(
    "health.stages_gone",
    "stage {stages} is not running, and was not started again within {limit_s} s",
    cause="The stage cannot start.",
    remedy="Read its log in the run directory; correct what its last line names.",
)

# Of a job.

EXACT = Entry("health.exact", "the replica is at step {step}; {notes}")
RESTS_ON = Entry("health.rests_on", "rests on {count} assumptions")
AUDITED_AT = Entry("health.audited_at", "audited at step {step}")
NOT_AUDITED = Entry("health.not_audited", "never audited")
SOURCES_ENDED = Entry("health.sources_ended", "the sources have ended")
STATED_LAST_STEP = Entry(
    "health.stated_last_step", "that is the job's stated last step: it is over"
)
NOT_LEARNED = Entry("health.not_learned", "no job is learned yet")
NO_FRAME_YET = Entry(
    "health.no_frame_yet",
    "no frame came from any source so far",
    cause="The training job sends nothing yet, or the mirror is off or leads elsewhere.",
    remedy="Check that the mirror is switched on and leads here: run on the switch what `flowcheck "
    "switch render --os OS --source PORT --monitor PORT --part check` prints.",
)
NOT_LEARNED_BECAUSE = Entry("health.not_learned_because", "no job is learned yet: {reason}")
NO_STEP_YET = Entry("health.no_step_yet", "the job is learned, and no step of it is applied yet")
STEPS_WAIT = Entry(
    "health.steps_wait",
    "{steps} complete steps wait for the replica, the first of them for {seconds:.1f} s",
    cause="The updater is slower than the trainer, or stands still.",
    remedy="See its log and the load; give it more cores (`[replica] threads`, `cpus`).",
)
AUDIT_FAILED = Entry("health.audit_failed", "audit FAILED at step {step}")
AUDIT_FAILED_AT = Entry(
    "health.audit_failed_at",
    "audit FAILED at step {step}: {tensor} differs",
    section="replica",
    cause="The replica's bits are not those of the trainer's file.",
    remedy="Compare `[optimizer]` with the script: the first tensor that differs names the group. "
    "Then `flowcheck base FILE{this_run!o}` goes on from the trainer's own bits.",
)
NEVER_AUDITED = Entry(
    "health.never_audited",
    "never audited against a checkpoint of the trainer",
    section="replica",
    cause="Nothing contradicts the replica, and nothing proved it either.",
    remedy="Audit it with the first checkpoint that the trainer writes: "
    "`flowcheck audit FILE{run!o}`.",
    also=("run",),
)
OLDER_PARAMETER = Entry("health.older_parameter", "{parameter}: of step {step}")
OLDER_PARAMETERS = Entry(
    "health.older_parameters",
    "{count} parameters are not of the replica's step, the first: {first}",
)
BASE_MISSING = Entry(
    "health.base_missing",
    "the job began with an unknown state: the checkpoint that it resumed from was not given",
    section="replica",
    cause="The trainer resumed from a file FlowCheck never saw.",
    remedy="Give that file: `flowcheck base FILE{this_run!o}`.",
)
CHECKPOINT_MISSING = Entry(
    "health.checkpoint_missing",
    "step {lacking} lacks bytes that may matter to every element: gradients are logged until a "
    "checkpoint of it or a later step is given",
    section="loss",
    cause="Packets of the step were lost, and the optimizer's rule mixes elements (a norm, a loss "
    "scale, or a rule of whole tensors).",
    remedy="Give such a checkpoint of the trainer: `flowcheck base FILE{this_run!o}`; `[audit] "
    "folder` gives it by itself.",
)
BASE_MISSING_LOGGED = Entry(
    "health.base_missing_logged",
    "the job was joined midstream; its steps {first} to {last} since then are logged and wait "
    "for a base",
    remedy="Give two checkpoints that the trainer wrote since then: `flowcheck base FILE --then "
    "LATER{this_run!o}`; `[audit] folder` gives them by itself.",
)
BASE_MISSING_NONE_LOGGED = Entry(
    "health.base_missing_none_logged",
    "the job was joined midstream; nothing is logged yet, and its state is unknown until a base "
    "is given",
    remedy="Give two checkpoints that the trainer writes from now on: `flowcheck base FILE --then "
    "LATER{this_run!o}`; `[audit] folder` gives them by itself.",
)
STAYS_FOR_BASE = Entry("health.stays_for_base", "the replica stays at step {step}; {base}")
STAYS_BEFORE_LOST = Entry(
    "health.stays_before_lost",
    "the replica stays at step {step}, before step {lost_step}, which was lost: {why}; {base}",
)
LOST_STEP = Entry(
    "health.lost_step",
    "step {step} was lost: {why}; the replica stays before it, until the job starts again from "
    "one of its steps, or two checkpoints that the trainer writes from now on are given: "
    "`flowcheck base FILE --then LATER{this_run!o}`",
)

# Of what arrives.

STEPS_TOOK = Entry("health.steps_took", ", and its steps took {seconds:,.3g} s")
SILENT = Entry(
    "health.silent",
    "nothing of the job arrived for {seconds} s{pace}: the job ended or stands still, or the "
    "mirror no longer brings it; frames cannot tell which. Before that it was {word}: {reason}",
    section="arrival",
    cause="All was well before (`stale`): the job ended or stands still, or the mirror no longer "
    "brings it, as after a switch that restarted without the session; the replica keeps the last "
    "complete step.",
    remedy="Look at the trainers; if they train, at the session (`flowcheck switch render --os OS "
    "--source "
    "PORT --monitor PORT --part check` prints what shows it) and the link of the monitor port. "
    "Steps that pass meanwhile are lost.",
)
QUIET = Entry(
    "health.quiet", "nothing of the job arrived for {seconds} s{pace}; before that {reason}"
)
PACKETS_MISSING = Entry(
    "health.packets_missing",
    "{packets:,} packets of step {step} are missing so far: the replica waits for them at step "
    "{replica_step}, {lag} steps behind the wire",
    cause=_FRAMES_LOST,
    remedy="`flowcheck status{this_run!o}` shows where frames are lost; see the monitor port and "
    "`flowcheck doctor`.",
)
PACKETS_OF_STEPS_MISSING = Entry(
    "health.packets_of_steps_missing",
    "{packets:,} packets of {steps} steps are missing so far: the replica waits for them at step "
    "{replica_step}, {lag} steps behind the wire",
    cause=_FRAMES_LOST,
    remedy="`flowcheck status{this_run!o}` shows where frames are lost; see the monitor port and "
    "`flowcheck doctor`.",
)
NOT_PLACED = Entry(
    "health.not_placed",
    "frames arrive that cannot be applied yet: the job started again and is being learned, or "
    "other jobs write there; the replica stays at step {step} meanwhile",
)
