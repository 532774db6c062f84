"""Why an output is not written where --out says: what lies there, and what would be lost."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

EXISTS = Entry(
    "output.exists",
    "already exists",
    remedy="Name another output, or replace this one with `--force`.",
)
NO_NAME = Entry(
    "output.no_name",
    "is a folder that a process works in",
    remedy="Name a new file or folder.",
)
NO_PARENT = Entry(
    "output.no_parent",
    "there is no folder {folder}",
    remedy="Make it first: `mkdir -p {folder!q}`.",
)
IS_INPUT = Entry(
    "output.is_input",
    "is {what}",
    remedy="Name another file or folder: the command would overwrite what it reads.",
)
HOLDS_INPUT = Entry(
    "output.holds_input",
    "holds {what}, {path}",
    remedy="Name another file or folder.",
)
LIES_IN_INPUT = Entry(
    "output.lies_in_input",
    "lies in {what}, {path}",
    remedy="Name another file or folder, outside of it.",
)
IS_LINK = Entry(
    "output.is_link",
    "is a link to {target}",
    remedy="Name {target} itself, or another output.",
)
IS_FILE = Entry(
    "output.is_file",
    "is a file, and the output is a folder",
    remedy="Name another file or folder.",
)
IS_SPECIAL = Entry(
    "output.is_special",
    "is neither a file nor a folder",
    remedy="Name another file or folder.",
)
OTHERS_OUTPUT = Entry(
    "output.others_output",
    "belongs to {owner}, and others may write to {folder}",
    cause="Root leaves what it replaces to its owner, and anybody could have put a file there.",
    remedy="Name another output, or remove this one first.",
)
IS_MOUNT = Entry(
    "output.is_mount",
    "is where a disk is mounted",
    remedy="Name something below it.",
)
HOLDS_FOREIGN = Entry(
    "output.holds_foreign",
    "holds {names}, which no flowcheck restore wrote there: --force replaces only an "
    "output of flowcheck",
    remedy="Name another file or folder, or take that away first.",
)
HOLDS_MORE_FOREIGN = Entry(
    "output.holds_more_foreign",
    "holds {names} and more, which no flowcheck restore wrote there: --force replaces "
    "only an output of flowcheck",
    remedy="Name another file or folder, or take that away first.",
)
FOREIGN_MANIFEST = Entry(
    "output.foreign_manifest",
    "its manifest would be {manifest}, but flowcheck did not write the file of that name "
    "that is there",
    remedy="Name another output.",
)
