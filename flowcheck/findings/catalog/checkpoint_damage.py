"""What of a checkpoint's files is not as its manifest says."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_CHANGED_MANIFEST = (
    "The manifest was damaged or changed after it was written, or another program wrote it."
)

_COPY = "Take another copy of the step, or an earlier step."

TENSOR_CHANGED = Entry(
    "damage.tensor_changed", "its sha256 differs from the manifest's", remedy=_COPY
)
FILE_CHANGED = Entry("damage.file_changed", "its sha256 differs from the manifest's", remedy=_COPY)
AROUND_CHANGED = Entry(
    "damage.around_changed",
    "the sha256 of the bytes around its tensors differs from the manifest's",
    remedy=_COPY,
)
FILE_MISSING = Entry("damage.file_missing", "is missing", remedy=_COPY)
FILE_SIZE = Entry("damage.file_size", "has {bytes:,} bytes, {written:,} were written", remedy=_COPY)
FILE_UNREADABLE = Entry(
    "damage.file_unreadable",
    "cannot be read: {error}",
    remedy="Check the rights of the file and its disk (`ls -l`, `dmesg`), or take another copy of "
    "the step.",
)
NOT_LISTED = Entry(
    "damage.not_listed", "lies in a file that the manifest does not list", remedy=_COPY
)
CUT_OFF = Entry("damage.cut_off", "is cut off: the file ends before the tensor does", remedy=_COPY)
IN_PART = Entry("damage.in_part", "{part}: {why}")
IN_TENSOR = Entry("damage.in_tensor", "{tensor}: {why} ({file})")
NOT_AS_WRITTEN = Entry(
    "damage.not_as_written",
    "{checkpoint}: damaged: {fault}",
    remedy=_COPY,
)
SEVERAL_NOT_AS_WRITTEN = Entry(
    "damage.several_not_as_written",
    "{checkpoint}: damaged: {fault}, and {more} more",
    remedy=_COPY,
)

# The manifest.

NO_MANIFEST_FILE = Entry(
    "manifest.no_file",
    "{output}: not a complete checkpoint: {manifest} is not a regular file",
    remedy=_COPY,
)
MANIFEST_UNREADABLE = Entry(
    "manifest.unreadable",
    "{output}: has no manifest of FlowCheck that can be read: {manifest}: {error}",
    cause="FlowCheck verifies and restores only what it wrote, by the checksums in the manifest "
    "that it writes last. Another program wrote this one, as trainers write their own checkpoints; "
    "or its writing was not finished.",
    remedy="Name a finished step-N folder, a folder whose `latest` names one, or a file that "
    "FlowCheck's restore wrote: it has its checksums in {manifest} beside it.",
)
NO_SUCH_CHECKPOINT = Entry(
    "manifest.no_checkpoint",
    "{output}: does not exist",
    cause="The path is misspelt, or the checkpoint was moved or removed.",
    remedy="Correct the path; of a chain that has ended, `flowcheck status --run DIR` names the "
    "folder of its checkpoint.",
)
MANIFEST_FORBIDDEN = Entry(
    "manifest.not_accessible",
    "{output}: user {user} cannot read {manifest} beside it: {error}",
    cause="The command runs as the user who started it, or, of root's, as the owner of the run "
    "directory; that user may not read the file beside the checkpoint.",
    remedy="Give that user the right to read both: `setfacl -m u:{uid}:r {output!q} {manifest!q}`, "
    "or `chmod a+r {output!q} {manifest!q}` for all users; and `x` on each folder above "
    "(`namei -l {manifest!q}` shows them).",
    also=("uid",),
)
MANIFEST_TOO_LONG = Entry(
    "manifest.too_long",
    "{manifest}: not a manifest of FlowCheck: longer than {bytes:,} bytes",
    cause=_CHANGED_MANIFEST,
    remedy=_COPY,
)
NO_MANIFEST = Entry(
    "manifest.none",
    "{where}: not a manifest of FlowCheck: {error}",
    cause=_CHANGED_MANIFEST,
    remedy=_COPY,
)
FORMAT_UNKNOWN = Entry(
    "manifest.format_unknown",
    "{where}: has format {format}, this release reads {known}",
    remedy="Read it with the release of FlowCheck that wrote it, or a newer one.",
)
MANIFEST_CHANGED = Entry(
    "manifest.changed",
    "{where}: was changed after it was written: its own sha256 differs",
    remedy=_COPY,
)
SEVERAL_FILES = Entry(
    "manifest.several_files",
    "{manifest}: lists {files} files, not {file} alone",
    remedy="Name the folder that holds them.",
)

# What a manifest, or a list of files, says.

IN_CHECKPOINT = Entry("damage.in_checkpoint", "{checkpoint}: {fault}", remedy=_COPY)
LISTED_FILE_MISSING = Entry("manifest.listed_file_missing", "{file}: is missing", remedy=_COPY)
TOO_MANY_FILES = Entry(
    "manifest.too_many_files",
    "{where}: lists {files:,} files; at most {limit:,} are supported",
    cause=_CHANGED_MANIFEST,
    remedy=_COPY,
)
TOO_MANY_BYTES = Entry(
    "manifest.too_many_bytes",
    "{where}: lists {bytes:,} bytes; at most {limit:,} are supported",
    cause=_CHANGED_MANIFEST,
    remedy=_COPY,
)
IMPOSSIBLE_FILE = Entry(
    "manifest.impossible_file",
    "{where}: lists {file} with {bytes:,} bytes and the sha256 {sha256}, which no file has",
    cause=_CHANGED_MANIFEST,
    remedy=_COPY,
)
LISTS_ITSELF = Entry(
    "manifest.lists_itself",
    "{where}: {manifest} lists itself",
    cause=_CHANGED_MANIFEST,
    remedy=_COPY,
)

# What of a manifest's `plain` does not fit the rest of it.

PLAIN_UNLIKE = Entry("manifest.plain_unlike", "plain: {why}")
NO_PARAMETER = Entry("manifest.no_parameter", "{name} is no parameter")
NUMBER_TWICE = Entry("manifest.number_twice", "two parameters have the same number")
NUMBER_IN_NO_GROUP = Entry("manifest.number_in_no_group", "a parameter's number is in no group")
GROUPS_OF_NO_OPTIMIZER = Entry(
    "manifest.groups_of_no_optimizer", "its parameter groups do not belong to its optimizers"
)
SCALER_WITHOUT_SCALE = Entry("manifest.scaler_without_scale", "the scaler has no scale")
