"""Names of files and checkpoints that came from outside and are refused; files that others own."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_NAMES_WRONG = "The list of files was changed, or another program wrote it."
_AGAIN = "Copy the checkpoint again from where it was saved, or give an earlier step."
_NOT_FOLLOWED = "Links and special files could lead elsewhere, so they are not used."

NOT_A_CHECKPOINT_NAME = Entry(
    "names.not_a_checkpoint_name",
    "{where}: names {name}, which is not the name of a FlowCheck checkpoint (step-N)",
    cause=_NAMES_WRONG,
    remedy="Name the step-N folder itself.",
)
NO_STEP_IN_NAME = Entry(
    "names.no_step_in_name",
    "{name}: not the name of a FlowCheck checkpoint (step-N)",
    cause="The folder was renamed, or is no checkpoint.",
    remedy="Name a folder step-N.",
)
NOT_A_STEP = Entry(
    "names.not_a_step",
    "{where}: says step {step}, which is not a step number",
    cause=_NAMES_WRONG,
    remedy=_AGAIN,
)
NOT_IN_THE_FOLDER = Entry(
    "names.not_in_the_folder",
    "{where}: names {name}, which is not the name of a file directly in its folder",
    cause=_NAMES_WRONG,
    remedy=_AGAIN,
)
NOT_IN_A_CHECKPOINT = Entry(
    "names.not_in_a_checkpoint",
    "{where}: names {name}, which cannot be a file of a checkpoint",
    cause=_NAMES_WRONG,
    remedy=_AGAIN,
)
LISTED_TWICE = Entry(
    "names.listed_twice",
    "{where}: names {name} twice",
    cause=_NAMES_WRONG,
    remedy=_AGAIN,
)
KEPT_FOR_DOWNLOADS = Entry(
    "names.kept_for_downloads",
    "{where}: names {name}, which is where a download keeps its own notes",
    cause=_NAMES_WRONG,
    remedy=_AGAIN,
)
FILE_AND_FOLDER = Entry(
    "names.file_and_folder",
    "{where}: names {name} as a file and also as a folder",
    cause=_NAMES_WRONG,
    remedy=_AGAIN,
)
A_LINK_BELOW = Entry(
    "names.a_link_below",
    "{folder}: {name} is a symbolic link; links are not followed",
    cause=_NOT_FOLLOWED,
    remedy="Copy the checkpoint with the files that the links lead to (`cp -rL`).",
)
NOT_REGULAR_BELOW = Entry(
    "names.not_regular_below",
    "{folder}: {name} is not a regular file",
    cause=_NOT_FOLLOWED,
    remedy="Copy the checkpoint again, as regular files.",
)
NOT_REGULAR = Entry(
    "names.not_regular",
    "{path}: not a regular file, so it is not read",
    cause=_NOT_FOLLOWED,
    remedy="Name a regular file.",
)
LATEST_TOO_LONG = Entry(
    "names.latest_too_long",
    "{where}: longer than {bytes} bytes, so it does not name a checkpoint",
    cause=_NAMES_WRONG,
    remedy="Name the step-N folder itself.",
)

# Files and folders of this machine that others own or may write to.

LINK_OR_FILE = Entry(
    "owner.link_or_file",
    "is a link or a file, not a folder",
    remedy="Name a folder.",
)
A_LINK = Entry(
    "owner.a_link",
    "is a symbolic link; links are not followed",
    cause=_NOT_FOLLOWED,
    remedy="Name the real file, or put it there.",
)
NOT_A_FILE = Entry(
    "owner.not_a_file",
    "is not a regular file",
    cause=_NOT_FOLLOWED,
    remedy="Name a regular file.",
)
OTHER_OWNER = Entry(
    "owner.other_owner",
    "belongs to {owner}, and this process runs as {user}: what lies there is not taken over",
    remedy="Run it as that user, or name another folder.",
)
WRITABLE_BY_OTHERS = Entry(
    "owner.others_write",
    "may be written to by others (mode {mode}): what lies there could be theirs",
    also=("path",),
    remedy="Take that away (`chmod go-w {path!q}`), or name another folder.",
)
