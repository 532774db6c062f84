"""Why a folder is not used as a run directory, which job of it was named, and what is wrong with
its lifecycle record or with a checkpoint that is given to its updater."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NOT_ACCESSIBLE = Entry(
    "run.not_accessible",
    "user {user} may not look into the folder that it is in",
    remedy="Give that user `x` on each folder above (`namei -l PATH` shows them), or choose "
    "another `run`.",
)
IN_USE = Entry(
    "run.in_use",
    "is in use by process {pid}",
    also=("run",),
    section="processes",
    cause="A chain is running there already.",
    remedy="Name another `run` folder, or stop that chain: `flowcheck down{run!o}`.",
)
FOUND_NOTHING = Entry("run.found_nothing", "nothing is there")
FOUND_FILE = Entry("run.found_file", "it is a file")
FOUND_EMPTY = Entry("run.found_empty", "the folder is empty")
FOUND_OTHER = Entry("run.found_other", "the folder holds other files")
NO_CHAIN_STARTED = Entry(
    "run.no_chain_started",
    "{run}: no chain was started there: {found}",
    cause="The folder does not exist, or is no run directory, or `--run` was left out and the job "
    "file states another one.",
    remedy="`flowcheck up JOB.toml{run!o}` starts a chain there. Of a chain that runs elsewhere, "
    "name with `--run` the folder that its job file states (`run`), or that its replay was given.",
)
BEING_STARTED = Entry(
    "run.being_started",
    "{run}: a chain is being started there",
    cause="`flowcheck up` reads its job file and loads what it needs: seconds, and more with "
    "a large model.",
    remedy="Ask again in some seconds; what stands in the way of the start it tells itself.",
)
RUN_IS_FILE = Entry(
    "run.is_file",
    "{run}: no chain was started there: it is a file",
    cause="A run directory is expected there.",
    remedy="Name with `--run` the folder that the job file states (`run`), or that its replay was "
    "given.",
)
NOTHING_TO_STOP = Entry(
    "run.nothing_to_stop",
    "{run}: no chain was started there, so there is nothing to stop",
    cause="Nothing is there, or a file, or a folder that is no run directory.",
    remedy="Name with `--run` the run directory that the job file states (`run`); `flowcheck "
    "status --leftovers` lists what killed chains hold.",
)
SETTINGS_DAMAGED = Entry(
    "run.settings_damaged",
    "is damaged ({error})",
    also=("run",),
    remedy="Keep what you need of {run}, then remove the folder.",
)
OF_TWO_OWNERS = Entry(
    "run.of_two_owners",
    "belongs to uid {user}, but {path} in it belongs to uid {owner}",
    also=("run",),
    cause="An earlier start that was ended, or a chain that ran as another user, left it so. What "
    "others put there is not taken over.",
    remedy="If you trust what lies there, give all of it to that user (as root: `chown -R {user} "
    "{run!q}`) and start again; or name another run directory with `--run`.",
)
HOLDS_FOREIGN_FILES = Entry(
    "run.holds_foreign_files",
    "holds {names}, and no chain was started there",
    remedy="Name a folder of its own.",
)
HOLDS_SPECIAL_FILE = Entry(
    "run.holds_special_file",
    "holds {path}, which is no file or folder of a chain",
    remedy="Remove it, then try again.",
)
NO_SUCH_JOB = Entry(
    "run.no_such_job",
    "there is no such job",
    also=("jobs",),
    remedy="Give one of {jobs}, or a number from 1.",
)

ILLEGAL_TRANSITION = Entry(
    "lifecycle.illegal_transition",
    "{what} went from '{before}' to '{after}', which no table of transitions has; it goes on",
    remedy="This is a mistake in FlowCheck: report it with the logs of the run.",
)
LATER_VERSION = Entry(
    "lifecycle.later_version",
    "{file}: a later version of FlowCheck wrote it (record version {version}, this one "
    "reads up to {newest})",
    remedy="Use that version, or start the chain anew.",
)
ANOTHER_REQUEST = Entry(
    "lifecycle.another_request",
    "{run}: another file is being taken right now",
    remedy="Try again in a minute.",
)
FILE_GONE = Entry(
    "lifecycle.file_gone",
    "{file} is gone",
    remedy="Give it again.",
)
REQUEST_WITHDRAWN = Entry(
    "lifecycle.request_withdrawn",
    "{run}: the updater did not take {file} within {seconds:.0f} s; it is withdrawn",
    cause="The updater is busy, stopped, or waits for a step.",
    remedy="`flowcheck status{this_run!o}` shows the updater; run the command again when it moves.",
)
STILL_TAKEN = Entry(
    "lifecycle.still_taken",
    "{run}: the updater is still taking {file}",
    remedy="Wait for it: `flowcheck status{run!o}` shows when it is done.",
)
NO_BASE_AWAITED = Entry(
    "lifecycle.no_base_awaited", "the replica's state is known: nothing waits for a base"
)
