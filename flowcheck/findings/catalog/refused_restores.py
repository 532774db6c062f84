"""Why `flowcheck restore`, `load`, `verify` and `serve` have nothing to give, or are asked
wrongly."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# What was asked.

NOT_WITH_OPTION = Entry(
    "restore.not_with_option",
    "cannot be combined with {option}",
    remedy="Give one of them.",
)
TEMPLATE_OR_FORMAT = Entry(
    "restore.template_or_format",
    "neither --template nor --format was given",
    also=("formats",),
    remedy="Give `--template FILE`, a checkpoint the trainer wrote in this job, or `--format "
    "NAME`, one of {formats}.",
)
TEMPLATE_EACH = Entry(
    "restore.template_each",
    "{missing}; of several jobs a --template each, or --job {jobs}",
    cause="Each job of the run is restored into its own file.",
    remedy="Give a `--template` for each job, or name one job with `--job`.",
)
CHECKPOINT_OF_ONE_JOB = Entry(
    "restore.checkpoint_of_one_job",
    "is of one job",
    remedy="Give its template.",
)
WHICH_JOB_AS = Entry(
    "restore.which_job_as",
    "writes one job, and this run has several",
    also=("jobs",),
    remedy="Name the job with `--job`: {jobs} (or 1, 2 ...).",
)
WHICH_JOB = Entry(
    "restore.which_job",
    "is of one job, and the run has several",
    also=("jobs",),
    remedy="Name it with `--job`: {jobs}.",
)
URL_NAMES_JOB = Entry(
    "restore.url_names_job",
    "goes with --run; the URL names a job itself: http://host:port/jobs/K or the target's folder",
    cause="A URL already says of which job the steps are.",
    remedy="Leave `--job` out, and put `/jobs/K` into the URL.",
)
JOB_OF_A_RUN = Entry(
    "restore.job_of_a_run",
    "goes with --run, not with --checkpoint or --from",
    cause="A folder or a URL holds the steps of one job.",
    remedy="Leave `--job` out, or give `--run`.",
)
ONE_TEMPLATE = Entry(
    "restore.one_template",
    "several are given with --job, which names one job",
    remedy="Give only one, of that job.",
)
GRADIENTS_OF_A_SAVE = Entry(
    "restore.gradients_of_a_save",
    "names gradients behind a saved checkpoint, and no checkpoint is named",
    remedy="Name the folder of saved checkpoints too: `--checkpoint`.",
)
BUFFERS_OF_A_FILE = Entry(
    "restore.buffers_of_a_file",
    "is read for buffers of a --template or a --like file",
    remedy="Give one of these too, or leave it out.",
)
TEMPLATE_IS_A_FOLDER = Entry(
    "restore.template_is_a_folder",
    "is a folder: --format NAME --like FOLDER writes one in its place",
    cause="A template is one file, as `torch.save` writes it.",
    remedy="Give a file, or `--format` with `--like`.",
)
OTHER_STATE = Entry(
    "restore.other_state",
    "{url}: step {step} has another state by now",
    cause="The training job began again meanwhile, and made this step anew.",
    remedy="Ask again.",
)
NO_OWN_FOLDER = Entry(
    "restore.no_own_folder",
    "{folder}: does not belong to this user alone",
    remedy="Set TMPDIR to a folder that does.",
)
SERVE_WHAT = Entry(
    "restore.serve_what",
    "neither a run nor a folder of checkpoints is named",
    remedy="Give `--run DIR`, or a folder of checkpoints.",
)
NOT_A_FOLDER = Entry(
    "restore.not_a_folder",
    "is not a folder",
    remedy="Name the folder that holds the checkpoints.",
)
SERVE_UNENCRYPTED = Entry(
    "restore.serve_unencrypted",
    "the token and the checkpoints are sent in plain text; --tls-certificate encrypts them",
)

# Templates of several jobs.

ONE_JOB_FOLLOWED = Entry(
    "restore.one_job_followed",
    "{files} checkpoints, and one job was followed",
    remedy="Give one of it.",
)
ONE_FILE_FOR_JOBS = Entry(
    "restore.one_file_for_jobs",
    "1 checkpoint, and {jobs} jobs were followed",
    remedy="Give one of each job: `--template FILE`, once for each.",
)
FILES_FOR_JOBS = Entry(
    "restore.files_for_jobs",
    "{files} checkpoints, and {jobs} jobs were followed",
    remedy="Give one of each job: `--template FILE`, once for each.",
)
SAME_PARAMETERS = Entry(
    "restore.same_parameters",
    "{file}: jobs {jobs} had the same parameters at its step",
    remedy="Give a checkpoint of a later step, at which they differ.",
)
NO_JOBS_PARAMETERS = Entry(
    "restore.no_jobs_parameters",
    "{file}: no job's replica had its parameters at its step: it is of another job, or of a step "
    "that was not followed",
    cause="No replica had these parameters at that step.",
    remedy="Give a template that this job's trainer wrote while FlowCheck followed it.",
)
OF_ONE_JOB = Entry(
    "restore.of_one_job",
    "{files} are of one job",
    remedy="Give one checkpoint of each job.",
)

# The step.

STATE_UNKNOWN = Entry(
    "restore.state_unknown",
    "{run}: the optimizer's state is not known yet",
    remedy="Give a checkpoint of the trainer: `flowcheck base FILE{run!o}`.",
)
ELEMENTS_TAINTED = Entry(
    "restore.elements_tainted",
    "{elements:,} elements rest on bytes that are not known, since step {since}",
)
STEP_TAINTED = Entry(
    "restore.step_tainted",
    "step {step} of {where} is tainted: {taint}",
    cause="Packets of these elements' gradients or initial weights were lost, or copies of them "
    "differ; the step was applied without them.",
    remedy="Leave out `--step` for the newest exact step; `--allow-tainted` (`flowcheck.load(..., "
    "allow_tainted=True)`) takes this one as it is; `flowcheck base FILE{this_run!o}` with the "
    "trainer's newest checkpoint makes the replica exact again.",
)
ALL_TAINTED = Entry(
    "restore.all_tainted",
    "{run}: all steps that are kept are tainted: {steps}",
    cause="Packets were lost before the oldest of them, or copies differ, and no checkpoint was "
    "written before.",
    remedy="`--allow-tainted` (`flowcheck.load(..., allow_tainted=True)`) takes the newest as it "
    "is; `flowcheck base FILE{run!o}` with the trainer's newest checkpoint makes the replica exact "
    "again. `[persist]` keeps exact steps as files.",
)
NEWER_TAINTED = Entry(
    "restore.newer_tainted",
    "steps {steps} are newer, and tainted: elements of them rest on bytes that are not known",
    remedy="`--allow-tainted` gives the newest as it is; `flowcheck base FILE{this_run!o}` with "
    "the trainer's newest checkpoint makes it exact again.",
)
STEP_NOT_KEPT = Entry(
    "restore.step_not_kept",
    "{run}: step {step} is not kept (kept: {ranges}; the newest is {newest})",
    also=("kept",),
    cause="Kept are the newest steps of the replica, and those that were written as checkpoints.",
    remedy="Ask for one of those; `[persist] every_steps` and a larger `[replica] keep_bytes` "
    "keep more.",
)
STEP_NOT_REACHED = Entry(
    "restore.step_not_reached",
    "{run}: the replica has not applied step {step} yet (kept: {ranges}; the newest is {newest})",
    also=("kept",),
    cause="The number is higher than that of any step that the replica has applied.",
    remedy="Ask for one of those, or wait for the step: `flowcheck status{run!o}` shows how far "
    "the replica is.",
)
REPLICA_GONE = Entry(
    "restore.replica_gone",
    "{run}: its replica is gone, and neither its settings nor the record of its end names a folder "
    "of checkpoints: --checkpoint FOLDER names one",
    cause="The chain ended and its memory was given back.",
    remedy="`flowcheck status{run!o}` names the checkpoint that was kept, if one "
    "was: name it with `--checkpoint`, or a URL with `--from`.",
)
REPLAY_SAVED_NOTHING = Entry(
    "restore.replay_saved_nothing",
    "{run}: its replica is gone, and the replay ended before it saved a checkpoint in {folder}",
    cause="The replay ended and its memory was given back.",
    remedy="`flowcheck status{run!o}` shows why it ended, and the command that replays the "
    "captures again.",
)
NOTHING_WRITTEN = Entry(
    "restore.nothing_written",
    "{run}: no step was applied there, and no checkpoint was written",
    cause="The chain ended before its first step.",
    remedy="`flowcheck status{this_run!o}` shows why; use the trainer's own checkpoint.",
)
NO_STEP_YET = Entry(
    "restore.no_step_yet",
    "{run}: the chain runs, and no step is applied yet",
    remedy="`flowcheck status{this_run!o}` shows when one is; then run the command again.",
)
SAVED_IN_STORE = Entry(
    "restore.saved_in_store",
    "{run}: its replica is gone; `[persist]` saved step {step} at {place}",
    cause="The chain's memory is gone, and what it saved is in a store.",
    remedy="`flowcheck restore --from {place!q} --format torch --out restored.pt` gives that step.",
)
SAVED_IN_FOLDER = Entry(
    "restore.saved_in_folder",
    "{run}: its replica is gone, and of what `[persist]` saved in {folder}, step {step} the last, "
    "nothing can be told",
    cause="The chain's memory is gone, and the ledger of the folder is missing or damaged.",
    remedy="`flowcheck restore --checkpoint {folder!q} --format torch --out restored.pt` gives the "
    "step that `latest` names there; with `--gradients` and `[gradient_log] folder` also the steps "
    "behind it.",
)
KILLED_BEFORE_STEP = Entry(
    "restore.killed_before_step",
    "{run}: the chain there was killed before its first step, and no checkpoint was written",
    remedy="Use the trainer's own checkpoint; `flowcheck down{this_run!o}` removes what the killed "
    "chain left.",
)
BECAUSE = Entry("restore.because", "{fact} ({reasons})")
OVER_BECAUSE = Entry(
    "restore.over_because",
    "{fact} ({reasons})",
    cause="The chain ended before its first step.",
    remedy="`flowcheck status{this_run!o}` shows why; use the trainer's own checkpoint.",
)
OTHER_STEP = Entry(
    "restore.other_step",
    "{path}: is of step {found}, not of step {step}",
    cause="The file is of another step than was asked for.",
    remedy="Leave the step out, or ask for the step that it holds.",
)
STEP_NOT_THERE = Entry(
    "restore.step_not_there",
    "{path}: has no step {step}; it has {steps}",
    remedy="Ask for one of those; `--gradients` makes steps between them, where they were kept.",
)
NOT_A_DICTIONARY = Entry(
    "restore.not_a_dictionary",
    "{path}: holds a {type}, not a dictionary",
    remedy="Name a checkpoint that FlowCheck or the trainer wrote.",
)
STEPS_WAITING = Entry(
    "restore.steps_waiting",
    "{run}: frames or whole steps have waited for {seconds:g} s, and no process takes them",
    remedy="See `flowcheck status{run!o}`, and the logs in the run directory.",
)

# What is verified.

BEING_WRITTEN = Entry(
    "restore.being_written",
    "{output}: a restore is writing it just now",
    remedy="Wait for its end.",
)
RESTORE_KILLED = Entry(
    "restore.killed", "{output}: a restore was killed before it gave {name} its name; {left}"
)
COMPLETE_BY_MANIFEST = Entry(
    "restore.complete_by_manifest",
    "step {step} ({form}) is complete, as {left} says: {command}",
)
COMPLETE_IN_FOLDER = Entry(
    "restore.complete_in_folder", "step {step} ({form}) is complete, in {left}: {command}"
)

LATEST_NOT_WHOLE = Entry(
    "restore.latest_not_whole", "{file} names {checkpoint}, which {fault} ({there})"
)
HOLDS_NO_MANIFEST = Entry(
    "restore.holds_no_manifest",
    "holds no {manifest}",
    remedy="Name a folder or file that a chain, or `restore`, wrote.",
)
IS_NOT_THERE = Entry(
    "restore.is_not_there",
    "does not exist",
    remedy="Correct the path.",
)
WHOLE_ARE = Entry("restore.whole_are", "complete are {checkpoints}")
NONE_WHOLE = Entry("restore.none_whole", "no checkpoint there is complete")
STEP_WITHOUT_MANIFEST = Entry(
    "restore.step_without_manifest",
    "{path}: {manifest} is missing: the step is not complete, or FlowCheck did not write it",
    cause="The step was being written when its process ended, or it is no checkpoint of FlowCheck.",
    remedy="Name another step-N folder; `latest` names the newest whole one.",
)
NOTHING_TO_VERIFY = Entry(
    "restore.nothing_to_verify",
    "{path}: {found}",
    also=("suffix",),
    remedy="Name a step-N folder, a folder whose `latest` names one, or a file that flowcheck "
    "restore wrote (its checksums are beside it in NAME{suffix}).",
)
PATH_MISSING = Entry(
    "restore.path_missing",
    "does not exist",
    cause="The path is misspelt, or the folder was removed.",
    remedy="Correct the path.",
)
NO_MANIFEST_OF_IT = Entry("restore.no_manifest_of_it", "it has no manifest of FlowCheck")
