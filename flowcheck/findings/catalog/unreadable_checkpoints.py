"""Why a file or folder is not read as a checkpoint, whatever wrote it."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_OTHER_FILE = "The file is of another kind than a checkpoint of a training."
_DAMAGED_FILE = "The file is damaged or cut off, or another program wrote it."
_SAVED_AGAIN = (
    "Copy it again from where it was saved, give an earlier step, or save it with `torch.save`."
)

_ANOTHER = "Name another checkpoint."

CANNOT_BE_READ = Entry(
    "checkpoint.cannot_be_read",
    "{file}: cannot be read: {error}",
    remedy="Check the path and its permissions (`ls -l`).",
)
IN_FILE = Entry("checkpoint.in_file", "{file}: {why}")
TEXT_TOO_LONG = Entry(
    "checkpoint.text_too_long",
    "{file}: is longer than {limit:,} bytes, the most that is read of a text file of a checkpoint",
    cause=_OTHER_FILE,
    remedy="Name the checkpoint's own file.",
)

# Which format it is of.

UNKNOWN_FORMAT = Entry(
    "checkpoint.unknown_format",
    "{folder}: holds no checkpoint of a known format (torch.distributed.checkpoint's .metadata, "
    "safetensors or an index of them, DeepSpeed's or Megatron's shards, a manifest of FlowCheck's)",
    remedy=_ANOTHER,
)
UNFINISHED = Entry(
    "checkpoint.unfinished",
    "{folder}: holds no {manifest}: FlowCheck did not finish writing this step",
    remedy=_ANOTHER,
)

# Files of torch.save.

EMPTY = Entry(
    "checkpoint.empty",
    "{file}: is empty",
    remedy=_ANOTHER,
)
END_MISSING = Entry(
    "checkpoint.end_missing",
    "{file}: is incomplete: its end is missing, as after a write that was cut off",
    remedy=_ANOTHER,
)
WOULD_RUN_CODE = Entry(
    "checkpoint.would_run_code",
    "holds other than tensors and plain values ({name}), which would run code to be read",
    remedy="Save a checkpoint of tensors and plain values only.",
)
TORCHSCRIPT = Entry(
    "checkpoint.torchscript",
    "is a TorchScript program, not a checkpoint that torch.save wrote",
    remedy="Save the model's state_dict with `torch.save`.",
)
OTHER_ZIP = Entry(
    "checkpoint.other_zip",
    "is a zip archive, but not a complete one that torch.save wrote",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)
NOT_TORCH_SAVE = Entry(
    "checkpoint.not_torch_save",
    "is not a file that torch.save wrote, or an incomplete one",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)

# What stands in it.

PARTS_TOO_DEEP = Entry(
    "checkpoint.parts_too_deep",
    "{file}: its parts are nested too deeply",
    cause=_OTHER_FILE,
    remedy="Leave out of the checkpoint what is nested so deep.",
)
NESTED_DEEPER_THAN = Entry(
    "checkpoint.nested_deeper_than",
    "{file}: its parts are nested more than {levels} levels deep",
    cause=_OTHER_FILE,
    remedy="Leave out of the checkpoint what is nested so deep.",
)
PART_HOLDS_ITSELF = Entry(
    "checkpoint.part_holds_itself",
    "{file}: a part of it contains itself",
    cause=_OTHER_FILE,
    remedy="Leave out of the checkpoint what holds itself.",
)
PARTS_REPEAT = Entry(
    "checkpoint.parts_repeat",
    "{file}: its parts stand for {parts:,} values, more than a file of {bytes:,} bytes holds",
    cause=_OTHER_FILE,
    remedy="Read it only if you trust who made it; save the state_dict alone with `torch.save`.",
)
TENSORS_EXPAND = Entry(
    "checkpoint.tensors_expand",
    "{file}: its tensors take {tensor_bytes:,} bytes, but the file has {bytes:,}",
    cause=_OTHER_FILE,
    remedy="Save expanded tensors as their own copies (`.clone()`).",
)
PARTS_DO_NOT_FIT = Entry(
    "checkpoint.parts_do_not_fit",
    "{file}: its parts do not fit together: {error}",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)
INVALID_ARRAY = Entry(
    "checkpoint.invalid_array",
    "{file}: holds an invalid array of numpy's: {error}",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)
ARRAY_MADE_OF = Entry("checkpoint.array_made_of", "it is made of {kind} {shape}")
ARRAY_ELEMENTS = Entry("checkpoint.array_elements", "its elements are a {kind}, not bytes")
NOT_A_DTYPE = Entry("checkpoint.not_a_dtype", "a {kind} is not a dtype")
NOT_OF_NUMBERS = Entry("checkpoint.not_of_numbers", "{dtype} is not a dtype of numbers")

# Model folders of transformers, and safetensors.

INCOMPLETE_SAFETENSORS = Entry(
    "checkpoint.incomplete_safetensors",
    "{file}: is not a complete safetensors file: {error}",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)
NO_WEIGHTS = Entry(
    "checkpoint.no_weights",
    "{folder}: holds no {file}, no {older} and no index of shards",
    cause="The folder is not one of a model of transformers, or incomplete.",
    remedy="Name the folder that `save_pretrained` wrote.",
)
NO_TENSORS_BY_NAME = Entry(
    "checkpoint.no_tensors_by_name",
    "{file}: holds no tensors by name",
    remedy="Name the file that holds the model's state_dict.",
)
TENSOR_IN_TWO_FILES = Entry(
    "checkpoint.tensor_in_two_files",
    "{file}: holds {tensor}, which another file holds as well",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)
INVALID_INDEX = Entry(
    "checkpoint.invalid_index",
    "{index}: is not a valid index of shards: {error}",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)
INDEX_LISTS_NOTHING = Entry(
    "checkpoint.index_lists_nothing",
    "{index}: is not a valid index of shards: it lists no file",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)
NO_GLOBAL_STEP = Entry(
    "checkpoint.no_global_step",
    "{file}: holds no valid global_step: {error}",
    cause=_DAMAGED_FILE,
    remedy=_SAVED_AGAIN,
)
