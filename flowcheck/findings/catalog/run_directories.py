"""Why a folder is not used as a run directory, and which job of it was named."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NOT_ACCESSIBLE = Entry(
    "run.not_accessible",
    "user {user} may not look into the folder that it is in",
    cause="A folder above it is closed to the chain's user.",
    remedy="Give that user `x` on each folder above (`namei -l PATH` shows them), or choose "
    "another `run`.",
)
IN_USE = Entry(
    "run.in_use",
    "is in use by process {pid}: `flowcheck down --run {run!q}`",
    cause="A chain is running there already.",
    remedy="Another `run` folder, or stop that one.",
    section="processes",
)
NO_CHAIN_STARTED = Entry(
    "run.no_chain_started",
    "{run}: no chain was started there: `flowcheck up JOB.toml`",
    cause="The folder does not exist, or is no run directory, or `--run` was left out and the job "
    "file states another one.",
    remedy="Name with `--run` the run directory that the job file states (`run`), or that a "
    "replay was given; a live chain is started by `flowcheck up JOB.toml`.",
)
NOTHING_TO_STOP = Entry(
    "run.nothing_to_stop",
    "{run}: no chain was started there, so there is nothing to stop",
    cause="The folder does not exist, or is no run directory.",
    remedy="Name with `--run` the run directory that the job file states (`run`); `flowcheck "
    "status --leftovers` lists what killed chains hold.",
)
SETTINGS_DAMAGED = Entry(
    "run.settings_damaged",
    "is damaged ({error}): keep what you need of {run}, then remove it",
)
HOLDS_FOREIGN_FILES = Entry(
    "run.holds_foreign_files",
    "holds {names}, and no chain was started there: name a folder of its own",
)
HOLDS_SPECIAL_FILE = Entry(
    "run.holds_special_file",
    "holds {path}, which is no file or folder of a chain: remove it, then try again",
)
NO_SUCH_JOB = Entry("run.no_such_job", "must be one of {jobs}, or a number from 1")
