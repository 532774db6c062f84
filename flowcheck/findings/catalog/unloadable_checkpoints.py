"""Why a checkpoint, or part of it, is not loaded or written."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_OPTIMIZER_STATE = Entry(
    "checkpoint.no_optimizer_state",
    "the checkpoint holds parameters but no optimizer state: load its model alone",
)
UNNUMBERED_STATE = Entry(
    "checkpoint.unnumbered_state",
    "parameter {name} has an optimizer state, but the optimizer has no number for it",
)
OTHER_FORM = Entry(
    "checkpoint.other_form", "{folder}: has the form {form}, not that of a FlowCheck checkpoint"
)
FILE_NOT_LISTED = Entry(
    "checkpoint.file_not_listed",
    "{folder}: {manifest} does not list both {model} and {optimizer}: not the checkpoint that was "
    "written",
)
STATE_OF_NO_PARAMETER = Entry(
    "checkpoint.state_of_no_parameter",
    "{folder}: {file} holds {label}, which does not belong to a parameter",
)
NO_OPTIMIZER_NAMED = Entry(
    "checkpoint.no_optimizer_named", "{folder}: its manifest does not name an optimizer"
)
OTHER_PARAMETERS = Entry(
    "checkpoint.other_parameters", "{folder}: {file} does not hold the parameters of the layout"
)
CODE_WITHOUT_GROUPS = Entry(
    "checkpoint.code_without_groups",
    "the checkpoint names code of the training script and does not hold its optimizer's groups: "
    "--run-code runs that code, for a checkpoint of your own",
)
OTHER_RUN_HERE = Entry(
    "checkpoint.other_run_here",
    "{folder}: a checkpoint of another run is already here; name another --out",
)
NOT_READ_BACK = Entry(
    "checkpoint.not_read_back",
    "{file} does not read back as it was written (from byte {offset:,} on)",
)
NESTED_TOO_DEEP = Entry("checkpoint.nested_too_deep", "{what}: nested deeper than {depth} levels")
NOT_A_PLAIN_VALUE = Entry(
    "checkpoint.not_a_plain_value",
    "{what}: a {type} is not a plain value (number, text, list, dictionary) and cannot be written",
)
TENSORS_MISSING = Entry("checkpoint.tensors_missing", "{path}: the file is missing")
NOT_SAFETENSORS = Entry(
    "checkpoint.not_safetensors", "{path}: not a complete safetensors file: {error}"
)
DTYPE_NOT_WRITABLE = Entry(
    "checkpoint.dtype_not_writable",
    "{path}: {tensor} has the type {dtype}, which safetensors does not support",
)
