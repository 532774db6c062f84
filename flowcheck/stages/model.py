"""The replica's layout: what the wire told about the parameters, and what the job file must say."""

from __future__ import annotations

from flowcheck.config import ELEMENT_BYTES, JobConfig
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
    (element_bytes,) = sizes
    stated = config.model.dtype
    if stated is not None and ELEMENT_BYTES[stated] != element_bytes:
        raise StateError(
            f"[model] dtype = {stated!r} has elements of {ELEMENT_BYTES[stated]} bytes, and those "
            f"of the start-up broadcast have {element_bytes}: state the right one, or none"
        )
    dtype = stated or (told.pop() if told else DTYPES.get(element_bytes))
    if dtype is None:
        raise StateError(
            "elements of 2 bytes may be bfloat16 or float16 and the wire does not tell: "
            'state [model] dtype = "bfloat16" (or "float16")'
        )
    shapes = [(parameter.sizes, parameter.strides) for parameter in job.parameters]
    names = list(config.model.names) if names_fit(job, config) else None
    return Layout.of(shapes, names=names, dtype=dtype)


def names_fit(job: Job, config: JobConfig) -> bool:
    """There is a stated name for every parameter. Names are labels: a list of them that does not
    fit is no reason to lose a start-up broadcast, which comes once."""
    return len(config.model.names) == len(job.parameters)
