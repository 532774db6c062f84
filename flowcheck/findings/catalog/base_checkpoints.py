"""`flowcheck base` and `audit`: a trainer's checkpoint and a run, and why it is not taken."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

UP = "Run `flowcheck up JOB.toml{this_run!o}`."

# How the base of a job is known.
SAME_PARAMETERS = Entry(
    "base.same_parameters", "its parameters are those the job began with, bit for bit"
)
LEADS_TO_LATER_FILE = Entry(
    "base.leads_to_later_file", "the {steps} steps logged then lead to {file}, bit for bit"
)
AS_STATED = Entry(
    "base.as_stated", "as stated, it was written after {steps} steps since the job was joined"
)

AS_BEGUN_WITH = Entry("base.as_begun_with", "as stated, the job began with it")

# Why a checkpoint is not the base.
OF_WHICH_JOB_OPEN = Entry(
    "base.of_which_job_open",
    "{file}: which of the jobs it is the base of is unknown ({reasons})",
    also=("run",),
    remedy="Name the job: `--run {run!q}/jobs/N`.",
)
OF_SEVERAL_JOBS = Entry(
    "base.of_several_jobs",
    "it is the base of several of them",
    cause="Jobs that began with the same parameters would all take the file.",
    remedy="Give a checkpoint of a later step, when the jobs differ.",
)
OF_JOB = Entry("base.of_job", "job {number}: {why}")
CHAIN_HAS_ENDED = Entry(
    "base.chain_has_ended",
    "{run}: the chain there has ended, so no base is awaited",
    remedy="`flowcheck status{run!o}` shows how it ended and what it kept; `flowcheck up "
    "JOB.toml{this_run!o}` follows the job again.",
)
REPLAY_HAS_ENDED = Entry(
    "base.replay_has_ended",
    "{run}: the replay there has ended, so no base is awaited",
    also=("again",),
    remedy="`flowcheck status{run!o}` shows how it ended and what it kept; `{again}` reads the "
    "captures again.",
)
CHAIN_WAS_KILLED = Entry(
    "base.chain_was_killed",
    "{run}: the chain there was killed before it learned a job, so no base is awaited",
    remedy="`flowcheck up JOB.toml{this_run!o}` follows the job again; `flowcheck "
    "down{this_run!o}` removes what the killed chain left.",
)
REPLAY_WAS_KILLED = Entry(
    "base.replay_was_killed",
    "{run}: the replay there was killed before it learned a job, so no base is awaited",
    also=("again",),
    remedy="`{again}` reads the captures again; `flowcheck down{this_run!o}` removes what the "
    "killed replay left.",
)
NO_JOB_YET = Entry(
    "base.no_job_yet",
    "{run}: no job has been learned yet, so no base is awaited",
    remedy="`flowcheck status{this_run!o}` shows what learning waits for; give the base when it "
    "shows a job.",
)
STATE_KNOWN = Entry(
    "base.state_known",
    "{run}: the replica's state is known, so no base is awaited",
    remedy="Nothing is to be done. `flowcheck audit FILE{this_run!o}` compares the replica with "
    "the file.",
)
NO_UPDATER = Entry(
    "base.no_updater",
    "{run}: no updater is running that could take a file",
    remedy=UP,
)
NO_UPDATER_OF_REPLAY = Entry(
    "base.no_updater_of_replay",
    "{run}: no updater of the replay is running that could take a file",
    also=("again",),
    remedy="`{again}` reads the captures again.",
)
START_WAS_SEEN = Entry(
    "base.start_was_seen",
    "{run}: the job's start was captured, so where it began is known",
    remedy="Leave `--then` and `--after` out.",
)
BEING_JOINED = Entry(
    "base.being_joined",
    "{run}: the job is being joined again at this moment",
    remedy="Run the command again in a minute.",
)
NOT_WHAT_IT_BEGAN_WITH = Entry(
    "base.not_what_it_began_with",
    "{file}: not the state the job began with: {tensor} of step {step} differs from the initial "
    "weights that were broadcast",
    cause="The job began with other parameters than the file holds: it is of another run, or of "
    "another step.",
    remedy="Give the checkpoint from which the trainer resumed (its own log names it).",
)
STATED_ELSEWHERE = Entry(
    "base.stated_elsewhere",
    "{how}: that is after {steps} logged steps, not after {stated}",
    cause="The two checkpoints show another place in the log than `--after` states.",
    remedy="Leave `--after` out, or correct it.",
)
PLACE_UNKNOWN = Entry(
    "base.place_unknown",
    "{run}: the job was joined midstream; its steps {first} to {last} since then are "
    "logged, but no frame shows which of them follows this file",
    remedy="Give the trainer's next checkpoint too (`flowcheck base FILE --then LATER{run!o}`), "
    "or state after how many logged steps it was written (`flowcheck base FILE --after "
    "N{run!o}`).",
)
PLACE_NOT_LOGGED = Entry(
    "base.place_not_logged",
    "{run}: steps {first} to {last} since the job was joined are logged, but not the one that "
    "follows --after {after}",
    cause="The step after which the file was written is not in the gradient log.",
    remedy="Give a checkpoint written within those steps; `flowcheck status{this_run!o}` shows "
    "which are logged.",
)
BASE_REFUSED = Entry(
    "base.refused",
    "{run}: the updater refused the base",
    also=("events",),
    remedy="{events} has the updater's reason; give another checkpoint of this job.",
)

# Where in the log a checkpoint was written.
LATER_FILE_NOT_LATER = Entry(
    "base.later_file_not_later",
    "the later checkpoint is of step {later}, which does not come after step {step}",
    cause="The file after `--then` must be of a later step than the base.",
    remedy="Give the trainer's earlier checkpoint first, and the later one after `--then`.",
)
TOO_FEW_STEPS_LOGGED = Entry(
    "base.too_few_steps_logged",
    "{logged} steps are logged, but {needed} lie between steps {step} and {later}",
    remedy="Wait until they are logged, or give checkpoints that lie closer together.",
)
SEVERAL_PLACES = Entry(
    "base.several_places",
    "{places} places in the log lead from step {step} to step {later}",
    cause="The logged gradients lead from one file to the other in more than one place, as where "
    "they are zero.",
    remedy="Give another pair of checkpoints, or state the place with `--after`.",
)
NO_PLACE = Entry(
    "base.no_place",
    "no place in the log leads from step {step} to step {later}, bit for bit: the base is older "
    "than the log, or the optimizer's settings are not the trainer's, or it is another job",
    cause="The two files do not enclose steps that the log holds.",
    remedy="Give the trainer's two newest checkpoints, both written since FlowCheck joined; then "
    "compare `[optimizer]` with the script.",
)

# A base among the files of a watched folder.
BASE_OF_FOLDER = Entry(
    "base.of_folder", "{file} of step {step}, from the watched folder, is the base: {how}"
)
NO_FILE_FOR_BASE = Entry(
    "base.no_file_in_folder", "{folder} is watched for the base: no file has come yet"
)
SEARCHED_IN_FOLDER = Entry("base.searched_in_folder", "the watch for the base: {file}: {why}")
BASE_AWAITS_LATER = Entry(
    "base.awaits_later_file",
    "the job has no base yet: waits for a second file, of a later step, that shows which of the "
    "logged steps follow this one",
)
BASE_AWAITS_LOG = Entry(
    "base.awaits_log",
    "may be the base: waits until {later} can be tried as the second file, when all that was "
    "captured before it is read",
)
BASE_TRIED = Entry(
    "base.tried_so_far",
    "not shown to be the base so far, by {later}: {why}; it is tried again when more steps are "
    "logged",
)
BASE_DELAYED = Entry(
    "base.delayed",
    "may be the base, by {later}, but cannot be given now and is tried again: {why}",
)
NOT_THE_BASE = Entry("base.not_the_base", "not shown to be the base, by {later}: {why}")
LOG_BEGINS_BEHIND = Entry(
    "base.log_begins_behind",
    "the log begins behind step {step}: it held {logged} steps when all that was captured before "
    "{later} was read, and {needed} lie between the two files",
)
BASE_NOT_TRIED = Entry(
    "base.not_tried", "was not tried as the base: {files} newer files came before its turn"
)
BASE_STILL_MISSING = Entry(
    "base.still_missing",
    "the watch ended before the job had its base: {why}",
    remedy="The next watch of the folder goes on with the file; `flowcheck base FILE --then "
    "LATER{this_run!o}` gives it by hand.",
)

# A checkpoint that replaces a step of the replica.
NOTHING_TO_REPLACE = Entry(
    "base.nothing_to_replace",
    "all {tensors} tensors of step {step} equal the replica's, bit for bit: there is nothing to "
    "replace",
)
NOTHING_TAINTED = Entry(
    "base.nothing_tainted",
    "all that was compared of step {step} equals the replica's, and what was tainted there is "
    "exact by now: there is nothing to replace",
)
STEP_REPLACED = Entry(
    "base.step_replaced",
    "step {step} is now the trainer's own ({why}), and the {steps} steps that the replica had "
    "applied since are applied again",
)
WAIT_ENDED = Entry(
    "base.wait_ended",
    "the replica waited for it: step {step} is the trainer's own, and the {steps} steps logged "
    "since are applied",
)
RECORD_GONE = Entry("base.record_gone", "the replica's record of that step is gone")
TENSORS_DIFFERED = Entry(
    "base.tensors_differed", "{differing} of {tensors} tensors differed, {first} first"
)
STEP_NOT_REACHED = Entry(
    "base.step_not_reached",
    "{file}: is of step {step}, but the replica of {run} is at step {at} and did not get there "
    "within {limit_s} s",
    cause="The trainer wrote the file before the replica had applied that step.",
    remedy="`flowcheck status{this_run!o}` shows whether the replica goes on; when it has reached "
    "the step, run the command again.",
)
FILE_REFUSED = Entry("base.file_refused", "{file}: {why}")

# Audits.
AUDITED_JOB_OPEN = Entry(
    "audit.of_which_job_open",
    "{file}: which of the jobs it belongs to is unknown ({reasons})",
    also=("run",),
    remedy="Name the job: `--run {run!q}/jobs/N` compares the file with job N.",
)
EQUAL_TO_SEVERAL = Entry(
    "audit.equal_to_several",
    "it equals several of them",
    cause="Jobs of one model that began alike hold the same parameters at this step.",
    remedy="Audit with a checkpoint of a later step, when they differ.",
)
JOB_DIFFERS = Entry("audit.job_differs", "job {number}: {tensor} differs first")
NO_REPLICA = Entry(
    "audit.no_replica",
    "{run}: there is no replica to compare: no job was learned there, or no step of it is recorded",
    cause="Nothing was followed in this run directory so far.",
    remedy="Name with `--run` the run directory of a chain that applied steps; `flowcheck analyze "
    "FILE...` "
    "on the captures shows why no job is learned.",
)
NO_REPLICA_YET = Entry(
    "audit.no_replica_yet",
    "{run}: there is no replica to compare yet: the chain runs, and no step is applied",
    remedy="`flowcheck status{this_run!o}` shows what it waits for; audit when it shows a step.",
)
STEP_UNKNOWN = Entry(
    "audit.step_unknown",
    "{file}: nothing in it says at which step it was written: its optimizer keeps no "
    "state, and it holds no step counter",
    remedy="State the step: `flowcheck audit FILE --step N{this_run!o}`.",
)
OTHER_STEP = Entry(
    "audit.other_step",
    "{file} is of step {step}",
    cause="The file itself tells its step, and another one is stated.",
    remedy="Leave `--step` out, or name the file of that step.",
)
STEP_NOT_RECORDED = Entry(
    "audit.step_not_recorded",
    "{file}: is of step {step}; the replica of {run} is at step {at} and has no record of step "
    "{step}",
    cause="The replica keeps digests of its last steps only, and the file's step is older or was "
    "lost.",
    remedy="Audit with a checkpoint of one of the newest steps that the replica applied.",
)
