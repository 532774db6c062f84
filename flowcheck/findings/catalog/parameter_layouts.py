"""Shapes, sizes and names that do not fit the model's parameters."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NO_PARAMETERS = Entry("layout.no_parameters", "a layout needs at least one parameter")
NAME_COUNT = Entry("layout.name_count", "{names} names for {parameters} parameters")
SAME_NAME = Entry("layout.same_name", "two parameters have the same name")
UNKNOWN_DTYPE = Entry("layout.unknown_dtype", "dtype {dtype}: a replica holds one of {dtypes}")
NOT_IN_PLACE = Entry(
    "layout.not_in_place", "its parameters do not lie where they would in the flat state"
)
ELEMENT_COUNT = Entry(
    "layout.element_count", "{elements} elements given, the layout has {expected}"
)
STRIDE_COUNT = Entry("layout.stride_count", "{name}: {sizes} sizes and {strides} strides")
NEGATIVE_SIZE = Entry("layout.negative_size", "{name}: shape [{shape}] has a negative size")
NOT_DENSE = Entry(
    "layout.not_dense",
    "{name}: shape [{shape}] with strides [{strides}] has holes or overlaps; only dense tensors "
    "(contiguous, channels_last and other permutations) fit",
)
BYTE_COUNT = Entry(
    "layout.byte_count",
    "{what}: {bytes} bytes given, the layout has {expected} ({elements} elements of {dtype})",
)
GRADIENT_BYTES = Entry(
    "layout.gradient_bytes", "gradient: {bytes} bytes given, the layout has {expected}"
)

# Units of a sharded model.

UNITS_NOT_OF_DTYPE = Entry(
    "layout.units_not_of_dtype", "units of {sizes} bytes do not hold whole elements of {dtype}"
)
GATHER_RANKS = Entry(
    "layout.gather_ranks",
    "[sharded] ranks = {stated}, but parameters are gathered from {ranks} ranks",
)
GATHER_UNITS = Entry(
    "layout.gather_units",
    "the model of [sharded] factory is gathered in units of {model} bytes, the wire has {wire}",
)
