"""Why a checkpoint, or part of it, is not loaded or written."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_DAMAGED_HERE = "The checkpoint is damaged or incomplete, or FlowCheck did not write it."
_AGAIN = "Copy the checkpoint again from where it was saved, or give an earlier step."

NO_OPTIMIZER_STATE = Entry(
    "checkpoint.no_optimizer_state",
    "the checkpoint holds parameters but no optimizer state",
    remedy="Load its model alone.",
)
UNNUMBERED_STATE = Entry(
    "checkpoint.unnumbered_state",
    "parameter {name} has an optimizer state, but the optimizer has no number for it",
    cause=_DAMAGED_HERE,
    remedy=_AGAIN,
)
OTHER_FORM = Entry(
    "checkpoint.other_form",
    "{folder}: has the form {form}, and not the form of a FlowCheck checkpoint",
    cause="The folder is a checkpoint of another format.",
    remedy="Restore it with the option for that format, or name a step-N folder of FlowCheck.",
)
FILE_NOT_LISTED = Entry(
    "checkpoint.file_not_listed",
    "{folder}: {manifest} does not list both {model} and {optimizer}: not the checkpoint that was "
    "written",
    cause=_DAMAGED_HERE,
    remedy=_AGAIN,
)
STATE_OF_NO_PARAMETER = Entry(
    "checkpoint.state_of_no_parameter",
    "{folder}: {file} holds {label}, which does not belong to a parameter",
    cause=_DAMAGED_HERE,
    remedy=_AGAIN,
)
NO_OPTIMIZER_NAMED = Entry(
    "checkpoint.no_optimizer_named",
    "{folder}: its manifest does not name an optimizer",
    cause=_DAMAGED_HERE,
    remedy=_AGAIN,
)
OTHER_PARAMETERS = Entry(
    "checkpoint.other_parameters",
    "{folder}: {file} does not hold the parameters of the layout",
    cause=_DAMAGED_HERE,
    remedy=_AGAIN,
)
CODE_WITHOUT_GROUPS = Entry(
    "checkpoint.code_without_groups",
    "the checkpoint names code of the training script and does not hold its optimizer's groups: "
    "--run-code runs that code, for a checkpoint of your own",
    cause="The groups must be made by the script's own code.",
    remedy="Give `--run-code` if the checkpoint is your own.",
)
OTHER_RUN_HERE = Entry(
    "checkpoint.other_run_here",
    "{folder}: a checkpoint of another run is already here",
    remedy="Name another `--out`.",
)
NOT_READ_BACK = Entry(
    "checkpoint.not_read_back",
    "{file} does not read back as it was written (from byte {offset:,} on)",
    cause="The disk returned other bytes than were written.",
    remedy="Check the disk (`dmesg`, `smartctl`), and write elsewhere until it is replaced.",
)
NESTED_TOO_DEEP = Entry(
    "checkpoint.nested_too_deep",
    "{what}: nested deeper than {depth} levels",
    cause="Lists or dictionaries lie within each other without end.",
    remedy="Leave it out of what the trainer saves.",
)
NOT_A_PLAIN_VALUE = Entry(
    "checkpoint.not_a_plain_value",
    "{what}: a {type} is not a plain value (number, text, list, dictionary) and cannot be written",
    cause="The trainer keeps an object of a class of its own beside model and optimizer.",
    remedy="Keep it as numbers, text, lists or dictionaries, or leave it out.",
)
TENSORS_MISSING = Entry(
    "checkpoint.tensors_missing",
    "{path}: the file is missing",
    cause=_DAMAGED_HERE,
    remedy=_AGAIN,
)
NOT_SAFETENSORS = Entry(
    "checkpoint.not_safetensors",
    "{path}: not a complete safetensors file: {error}",
    cause=_DAMAGED_HERE,
    remedy=_AGAIN,
)
DTYPE_NOT_WRITABLE = Entry(
    "checkpoint.dtype_not_writable",
    "{path}: {tensor} has the type {dtype}, which safetensors does not support",
    cause="The safetensors format has no such type.",
    remedy="Restore with `--format torch`.",
)
