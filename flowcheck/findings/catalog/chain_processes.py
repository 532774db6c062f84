"""The processes of a chain: started, died, restarted; records, links and memory they need."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# How a stage ended.

KILLED = Entry("process.killed", "was killed by signal {signal}")
EXITED = Entry("process.exited", "ended with exit code {code}")
STAGE_SAYS = Entry("process.stage_says", "{stage}: {what}")
"""what: its finding, which has the remedy."""
JOB_SAYS = Entry("process.job_says", "job {job}: {what}")
STAGE_RESTARTED = Entry("process.stage_restarted", "{stage} {ended} and was restarted")
OPTIONAL_STAGE_RESTARTED = Entry(
    "process.optional_stage_restarted", "{stage} {ended} and is started again; {log}"
)
OPTIONAL_STAGE_WAITS = Entry(
    "process.optional_stage_waits",
    "{stage} {ended} and is started again in {seconds} s; {log}",
)
STAGE_GAVE_UP = Entry(
    "process.stage_gave_up",
    "stage {stage} gave up; {log}",
    cause="The stage ended and could not be started again.",
    remedy="Read its log in the run directory; correct what its last error names, then `flowcheck "
    "up JOB.toml{this_run!o}` again.",
)
STAGE_KEEPS_DYING = Entry(
    "process.stage_keeps_dying",
    "stage {stage} died {deaths} times within {seconds} s and made no progress; the last time it "
    "{ended}; {log}",
    cause="A stage cannot start; the chain gives up and keeps the replica.",
    remedy="Correct what the end of its log names. Where that is empty, or the stage was killed, "
    "see whether memory or disk ran out (`free -m`, `df`, `dmesg`); `flowcheck doctor` checks the "
    "machine. Then start the chain again: `flowcheck up JOB.toml{this_run!o}`.",
    section="processes",
)
STAGE_NOT_UP = Entry(
    "process.stage_not_up",
    "stage {stage} did not come up within {seconds} s; {log}",
    cause="The stage did not say that it is ready: it waits for its card, its memory or a "
    "processor.",
    remedy="Read its log in the run directory; `flowcheck doctor` checks what the machine lacks.",
)
STAGE_STOOD_STILL = Entry(
    "process.stage_stood_still",
    "stage {stage} did not come up within {seconds} s, and stood still for {still_s} s; {log}",
    cause="The stage got no processor, or waited for a device, during that time.",
    remedy="See what else runs on its cores (`top`); give the stages cores of their own, then "
    "start again.",
)
LOG_ENDS = Entry("process.log_ends", "its log {log} ends with: {line}")
LOG_EMPTY = Entry("process.log_empty", "its log {log} is empty")
LOG_EMPTY_DISK_FULL = Entry(
    "process.log_empty_disk_full",
    "its log {log} is empty: the file system of {folder} is full",
)
MIXED_VERSIONS = Entry(
    "process.mixed_versions",
    "stage {stage} speaks layout version {version}, this supervisor {own}: two installations are "
    "mixed",
    cause="Two releases of FlowCheck on one machine.",
    remedy="Stop the chain, install one of them, start it.",
    section="processes",
)
BROKE = Entry(
    "process.broke",
    "{kind}: {text}",
    cause="An error that FlowCheck does not expect ended the stage.",
    remedy="Read the log of the stage in the run directory; if its disk and memory have room, "
    "report it with the logs.",
)
"""kind, text: class and words of an error of Python's, or of a library."""
CAPTURE_STARTER_GONE = Entry(
    "process.capture_starter_gone",
    "a capture has to be started and the processes that start captures are gone",
    cause="Both were killed at the same time, and nobody else in the chain has rights to capture. "
    "The chain has ended by it.",
    remedy="Start the chain again as it was started (`flowcheck up JOB.toml{this_run!o}`).",
)
CAPTURE_STARTER_FAILED = Entry(
    "process.capture_starter_failed",
    "a capture has to be started and the process that starts captures cannot ({error})",
    cause="The machine has no process, memory or time left for it. The chain has ended by it.",
    remedy="Start the chain again as it was started (`flowcheck up JOB.toml{this_run!o}`).",
)
STAGE_UNKNOWN = Entry(
    "process.stage_unknown",
    "no such stage",
    also=("stages",),
    remedy="Name one of {stages}.",
)
NUMBER_UNKNOWN = Entry(
    "process.number_unknown",
    "the chain has {count} {per}s, counted from 0",
    cause="The command names a stage that the job file does not have.",
    remedy="Start the chain with `flowcheck up JOB.toml{this_run!o}`, which numbers its stages "
    "itself.",
)
SOCKET_PATH_TOO_LONG = Entry(
    "process.socket_path_too_long",
    "the path of a socket in it is longer than {bytes} bytes",
    cause="The kernel allows no longer path for a socket.",
    remedy="Choose a run directory with a shorter path: `run` in the job file, or `--run`.",
)

# Events of a chain.

STARTED_BY = Entry("process.started_by", "process {pid}")
INCARNATION = Entry("process.incarnation", "incarnation {number} of the job")
LINK_DOWN = Entry("process.link_down", "{interface} has no link: nothing arrives by it")
LINK_UP = Entry(
    "process.link_up",
    "{interface} has a link again; what passed meanwhile never came",
)
NO_LINK_YET = Entry(
    "process.no_link_yet",
    "{device} has no link yet",
    cause="The NIC sees no signal.",
    remedy="Cable, transceiver, the switch port's state; it is tried on.",
    section="arrival",
)
JOB_SILENT = Entry(
    "process.job_silent",
    "the job ended or stands still, or the mirror does not bring it any more",
)
JOB_ARRIVES = Entry("process.job_arrives", "something of the job arrives again")
AUDIT_DIFFERS = Entry("process.audit_differs", "{file}: {difference}")
SERVED_AT = Entry("process.served_at", "steps are served at {url}")

# Records on a full disk.

RECORDS_UNWRITTEN = Entry(
    "records.unwritten",
    "{file} cannot be written ({error}): steps are applied all the same, and lines that are "
    "missing there are counted",
    remedy="Make room on its file system, or let the user of the chain write there.",
)
RECORDS_WRITTEN_AGAIN = Entry(
    "records.written_again",
    "{file} is written again; {lines:,} lines are missing there, as its file system was full",
)

# Checkpoints of a chain.

SAVE_FAILED = Entry(
    "saving.failed",
    "no checkpoint could be saved: {reason}; it is tried again",
    cause="The target refused or is full; the replica goes on.",
    remedy="Mend the target: the next save follows by itself.",
    section="saving",
)
SAVED_AGAIN = Entry(
    "saving.saved_again", "{target} takes checkpoints again: {checkpoint} is durable"
)
SAVES_DOUBTED = Entry(
    "saving.saves_doubted",
    "{target}: {checkpoints} saved before that came to light are noted there as not proved exact",
    cause="An audit failed, or copies of bytes differed, behind these saves. The newest save that "
    "is exact stays there, whatever `keep_last` says.",
    remedy="`flowcheck status{this_run!o}` tells which; `flowcheck base FILE{this_run!o}` ends the "
    "doubt of later saves.",
)
NEWEST_NOT_EXACT = Entry(
    "saving.newest_not_exact",
    "the newest save, of step {step}, is not called exact: {why}",
    cause="An audit failed, copies of bytes differed, or bytes never came.",
    remedy="Restore the newest save that is exact; `flowcheck base FILE{this_run!o}` makes later "
    "ones exact again.",
)
SAVE_AUDIT_FAILED = Entry("saving.audit_failed", "an audit of step {step} failed")
SAVE_COPIES_DIFFERED = Entry("saving.copies_differed", "copies of step {step} differed")
SAVE_TAINTED = Entry("saving.tainted", "elements of it are tainted")
DOUBTS_NOT_NOTED = Entry(
    "saving.doubts_not_noted",
    "{target}: what came to light behind earlier saves could not be noted there: {reason}",
    cause="The checkpoint itself is saved. Whoever has the target alone may take a save for exact "
    "that is in doubt.",
    remedy="`flowcheck status{this_run!o}` tells which audit failed, or which copies differed: "
    "take no step from there that rests on that.",
)
NOTHING_MOVED = Entry(
    "saving.nothing_moved",
    "{target}: nothing moved for {seconds} s",
    cause="The store took no data for that long.",
    remedy="Check the network to the store and its free space; the step is in the run directory "
    "as the message before says.",
)
NO_CHECKPOINT = Entry(
    "saving.no_checkpoint",
    "no checkpoint in {target}: {reason}",
    cause="The last step of the chain could not be saved at the target.",
    remedy="Mend the target; `flowcheck down{this_run!o}` saves it while the replica is in memory.",
)
STEP_TRIED_AGAIN = Entry(
    "saving.step_tried_again", "step {step} could not be saved: {reason}; it is tried again"
)
STEP_IS_SAVED = Entry("saving.step_is_saved", "step {step} is being saved to {target}")
