"""The replica's layout: what the wire told about the parameters, and what the job file must say."""

from __future__ import annotations

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.replica.layout import Layout
from flowcheck.wire.job import Job

DTYPES = {2: None, 4: "float32", 8: "float64"}
"""What an element size means where the wire leaves no choice for a gradient; 2 bytes: two fit."""


def layout_of(job: Job, config: JobConfig) -> Layout:
    """The replica's layout. Raises StateError where the dtype must be stated."""
    sizes = {parameter.element_bytes for parameter in job.parameters}
    told = {parameter.dtype for parameter in job.parameters} - {None}
    if len(sizes) != 1 or len(told) > 1:
        raise StateError("parameters of several dtypes: one dtype per replica is supported")
    dtype = config.model.dtype or (told.pop() if told else DTYPES.get(sizes.pop()))
    if dtype is None:
        raise StateError(
            "elements of 2 bytes may be bfloat16 or float16 and the wire does not tell: "
            'state [model] dtype = "bfloat16" (or "float16")'
        )
    shapes = [(parameter.sizes, parameter.strides) for parameter in job.parameters]
    return Layout.of(shapes, names=list(config.model.names) or None, dtype=dtype)
