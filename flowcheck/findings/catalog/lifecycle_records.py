"""The lifecycle record of a run, and the trainer's checkpoints that are given to its updater."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

ILLEGAL_TRANSITION = Entry(
    "lifecycle.illegal_transition",
    "{what} went from '{before}' to '{after}', which no table of transitions has; it goes on",
    remedy="This is a mistake in FlowCheck: report it with the logs of the run.",
)
LATER_VERSION = Entry(
    "lifecycle.later_version",
    "{file}: a later version of FlowCheck wrote it (record version {version}, this one reads up to "
    "{newest}): use that version, or start the chain anew",
)
ANOTHER_REQUEST = Entry(
    "lifecycle.another_request", "{run}: another file is being taken right now: try again"
)
FILE_GONE = Entry("lifecycle.file_gone", "{file} is gone: give it again")
REQUEST_WITHDRAWN = Entry(
    "lifecycle.request_withdrawn",
    "{run}: the updater did not take {file} within {seconds:.0f} s; it is withdrawn (see "
    "flowcheck status)",
    cause="The updater is busy, stopped, or waits for a step.",
    remedy="`flowcheck status` shows the updater; run the command again when it moves.",
)
STILL_TAKEN = Entry(
    "lifecycle.still_taken", "{run}: the updater is still taking {file}: see flowcheck status"
)
NO_BASE_AWAITED = Entry(
    "lifecycle.no_base_awaited", "the replica's state is known: nothing waits for a base"
)
