"""Shapes, sizes and names that do not fit the model's parameters."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_MISTAKE_CAUSE = "What one part of FlowCheck gave another is not of the expected size."
_MISTAKE = "This is a mistake in FlowCheck: report it with the logs of the run."
_BAD_SHAPES = (
    "The shapes do not describe parameters as torch has them: the record is damaged, or made "
    "by another program."
)

NO_PARAMETERS = Entry(
    "layout.no_parameters",
    "a layout needs at least one parameter",
    cause="The stated model has no parameter that takes gradients.",
    remedy="Correct `[model] factory` or `parameters`.",
)
NAME_COUNT = Entry(
    "layout.name_count",
    "{names} names for {parameters} parameters",
    cause="`[model] names` has not one name for each parameter.",
    remedy="State all names in registration order, or leave `names` out.",
)
SAME_NAME = Entry(
    "layout.same_name",
    "two parameters have the same name",
    remedy="State each name once in `[model] names`.",
)
UNKNOWN_DTYPE = Entry(
    "layout.unknown_dtype",
    "dtype {dtype}: a replica holds one of {dtypes}",
    cause="The model has parameters of a type that FlowCheck does not step.",
    remedy="Correct `[model] dtype`; keep parameters of that type out of training.",
)
NOT_IN_PLACE = Entry(
    "layout.not_in_place",
    "its parameters do not lie where they would in the flat state",
    cause=_MISTAKE_CAUSE,
    remedy=_MISTAKE,
)
ELEMENT_COUNT = Entry(
    "layout.element_count",
    "{elements} elements given, the layout has {expected}",
    cause=_MISTAKE_CAUSE,
    remedy=_MISTAKE,
)
STRIDE_COUNT = Entry(
    "layout.stride_count",
    "{name}: {sizes} sizes and {strides} strides",
    cause=_BAD_SHAPES,
    remedy="Give the job file's `[model] parameters` again, or learn the job anew.",
)
NEGATIVE_SIZE = Entry(
    "layout.negative_size",
    "{name}: shape [{shape}] has a negative size",
    cause=_BAD_SHAPES,
    remedy="Give the job file's `[model] parameters` again, or learn the job anew.",
)
NOT_DENSE = Entry(
    "layout.not_dense",
    "{name}: shape [{shape}] with strides [{strides}] has holes or overlaps; only dense tensors "
    "(contiguous, channels_last and other permutations) fit",
    cause="The model has a parameter that is a view with gaps.",
    remedy="Make the parameter contiguous in the script (`.contiguous()`).",
)
BYTE_COUNT = Entry(
    "layout.byte_count",
    "{what}: {bytes} bytes given, the layout has {expected} ({elements} elements of {dtype})",
    cause=_MISTAKE_CAUSE,
    remedy=_MISTAKE,
)
GRADIENT_BYTES = Entry(
    "layout.gradient_bytes",
    "gradient: {bytes} bytes given, the layout has {expected}",
    cause=_MISTAKE_CAUSE,
    remedy=_MISTAKE,
)

# Units of a sharded model.

UNITS_NOT_OF_DTYPE = Entry(
    "layout.units_not_of_dtype",
    "units of {sizes} bytes do not hold whole elements of {dtype}",
    cause="The trainer gathers parameters in another type than is stated.",
    remedy="Correct `[model] dtype`.",
)
GATHER_RANKS = Entry(
    "layout.gather_ranks",
    "[sharded] ranks = {stated}, but parameters are gathered from {ranks} ranks",
    cause="`[sharded] ranks` is not the trainer's number of ranks.",
    remedy="Correct it, or leave it out.",
)
GATHER_UNITS = Entry(
    "layout.gather_units",
    "the model of [sharded] factory is gathered in units of {model} bytes, the wire has {wire}",
    cause="The trainer wraps other modules than the function in `[sharded] factory`, or another "
    "model.",
    remedy="Make the function wrap the model as the script does (fully_shard, auto_wrap_policy).",
)
