"""Why a folder of torch.distributed.checkpoint (DCP) is not read, or not written."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_DCP_DAMAGED = (
    "The folder is damaged or incomplete, or torch.distributed.checkpoint did not write it."
)
_AGAIN = "Copy the checkpoint again from where it was saved, or give an earlier step."

WRITER_IS_A_RANK = Entry(
    "dcp.writer_is_a_rank",
    "{folder}: this process is a rank of a process group, and a rank cannot write the folder alone",
    remedy="Write it from a process that is not a rank, such as the command `restore` in a shell.",
)

# The metadata file.

METADATA_TOO_LONG = Entry(
    "dcp.metadata_too_long",
    "{file}: is larger than {limit:,} bytes",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
NO_METADATA = Entry(
    "dcp.no_metadata",
    "{file}: is not the metadata of torch.distributed.checkpoint",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
INVALID_METADATA = Entry(
    "dcp.invalid_metadata",
    "{file}: is not the metadata of torch.distributed.checkpoint: {error}",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
DICTIONARY_WITH_ARGUMENTS = Entry(
    "dcp.dictionary_with_arguments", "a dictionary is made with arguments"
)
SHAPE_DIMENSIONS = Entry("dcp.shape_dimensions", "a shape has no dimensions, or too many")
SHAPE_NOT_WHOLE = Entry("dcp.shape_not_whole", "a shape is not of whole numbers")
KEY_KIND = Entry("dcp.key_kind", "a {kind} is the key of a dictionary")
ARGUMENTS_KIND = Entry("dcp.arguments_kind", "an object is made with a {kind}, or too many values")
NUMBER_TOO_LONG = Entry("dcp.number_too_long", "it holds a number of {bytes} bytes")
WOULD_RUN_CODE = Entry("dcp.would_run_code", "it holds {name}, which would run code to be read")
HOLDS_EXTENSION = Entry("dcp.holds_extension", "it holds pickle extension {code}")
STATE_OF_KIND = Entry("dcp.state_of_kind", "it sets the state of a {kind}")
STATE_NOT_BY_NAME = Entry(
    "dcp.state_not_by_name", "the state of an object is not a dictionary of values by name"
)
ITEMS_INTO_KIND = Entry("dcp.items_into_kind", "it puts items into a {kind}")
UNEXPECTED_OPCODE = Entry(
    "dcp.unexpected_opcode", "it holds an instruction that torch puts into no metadata"
)

# Shards.

FILE_CUT_OFF = Entry(
    "dcp.file_cut_off",
    "{file}: is cut off: it ends before the saved value does",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
SHARD_NOT_SAVED = Entry(
    "dcp.shard_not_saved",
    "{folder}: {key}: no file holds its shard at {offset}",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
VALUE_NOT_SAVED = Entry(
    "dcp.value_not_saved",
    "{folder}: {key}: no file holds its value",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
TRANSFORMED = Entry(
    "dcp.transformed",
    "{folder}: {key}: was saved with the transforms {transforms}, which are not supported",
    cause="The trainer saved through a planner or a storage that changes the bytes, as by "
    "compression.",
    remedy="Save it without that, with torch's own planner and FileSystemWriter.",
)
INVALID_PLACE = Entry(
    "dcp.invalid_place",
    "{folder}: {key}: has no valid offset and length in {file}",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
UNKNOWN_KIND = Entry(
    "dcp.unknown_kind",
    "{folder}: {key}: is a {kind}, not a tensor or plain value",
    cause="The trainer saved an object of a class of its own.",
    remedy="Leave it out of the state_dict that the trainer saves, or save it with torch.save.",
)
SHARDS_OVERLAP = Entry(
    "dcp.shards_overlap",
    "{folder}: {file}: its shards overlap",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
TOO_MANY_DIMENSIONS = Entry(
    "dcp.too_many_dimensions",
    "{folder}: {key}: has {dimensions} dimensions, too many",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
INVALID_TENSOR = Entry(
    "dcp.invalid_tensor",
    "{folder}: {key}: no tensor can be of dtype {dtype} and shape {shape}",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
LARGER_THAN_FILES = Entry(
    "dcp.larger_than_files",
    "{folder}: {key}: a tensor of shape {shape} is larger than all files of the folder",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
SHARD_TWICE = Entry(
    "dcp.shard_twice",
    "{folder}: {key}: its shard at {offset} is listed twice",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
SHARD_DTYPE = Entry(
    "dcp.shard_dtype",
    "{folder}: {key}: a shard of it is not a tensor of {dtype}",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
SHARD_SHAPE = Entry(
    "dcp.shard_shape",
    "{folder}: {key}: a shard of it has shape {shape}, the metadata says {listed}",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
SHARD_OUTSIDE = Entry(
    "dcp.shard_outside",
    "{folder}: {key}: a shard of it lies outside of the shape {shape}",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
ELEMENTS_MISSING = Entry(
    "dcp.elements_missing",
    "{folder}: {key}: {saved} of its {elements} elements were saved",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
INVALID_PATH = Entry(
    "dcp.invalid_path",
    "{folder}: {key}: {path} is not a valid path in the tree",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
PATH_WITHIN_VALUE = Entry(
    "dcp.path_within_value",
    "{folder}: {key}: its path leads through another value",
    cause=_DCP_DAMAGED,
    remedy=_AGAIN,
)
