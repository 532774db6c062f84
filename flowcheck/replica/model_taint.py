"""The taint of a whole model, whose parts are followed as rings of one training job: the union of
the rings' own taints (taint.py), with the sums over them.

Each ring has a part of the model. A tensor that several rings hold (a layer norm, where layers are
shared among tensor-parallel ranks) counts in each of them. Pure: no torch, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowcheck.findings.catalog.restored_state import (
    EXACT_IN_ALL,
    MODEL_TAINTED,
    NAMES,
    NAMES_AND_MORE,
    NOT_EXACT_IN_ALL,
    PART_TAINTED,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import (
    SHOWN,
    TaintedRange,
    TaintedRanges,
    tainted_elements,
    tainted_since,
)
from flowcheck.step_numbers import Step

RANGES_TOLD = 16
"""Most ranges of a tensor that are listed; more are counted. A choice: a loss of one frame is one
range or a few."""
TENSORS_TOLD = 200
"""Most tensors that are listed, those with the most tainted elements; more are counted. A choice of
layout. Manifests have all."""


class TaintedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """The tainted elements of one parameter of one ring."""

    job: str
    """Name of the job that has the parameter: the ring's."""
    parameter: str
    tainted_elements: int
    all_elements: int | None
    """Elements of the parameter; None: unknown, as after a chain's end."""
    model_percent: float | None = None
    """Share of the whole model; None: unknown."""
    since: int
    """The first step that lacked a byte of them."""
    ranges: tuple[TaintedRange, ...] = ()
    """The first RANGES_TOLD, in memory order; (): unknown."""
    ranges_left_out: int = 0


class ModelPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one ring says of its part of the model, at one step."""

    job: str
    step: Step | None
    """None: the ring has no step yet."""
    all_elements: int | None
    """None: unknown."""
    tensors: tuple[TaintedTensor, ...] = ()


class ModelTaint(msgspec.Struct, frozen=True, kw_only=True):
    """What of a model is not exact. Rings may be at different steps: each tells of its newest."""

    jobs: tuple[str, ...]
    """Names of the jobs that have the model's parts, in their order."""
    step: Step | None
    """The newest step that all of them have reached; None: one has no step."""
    tainted_elements: int
    all_elements: int | None
    """Elements of all parts; None: a part is not known yet."""
    percent: float | None
    """Tainted share of all elements; None: unknown."""
    since: int | None
    """The first step that lacked something which still matters; None: nothing is tainted."""
    exact_step: Step | None
    """The newest step that is exact in all parts and can be restored; None: there is none."""
    tensors: tuple[TaintedTensor, ...]
    """In the order of jobs and of parameters."""
    tensors_left_out: int = 0
    told: Finding | None = None
    """The sums as a finding; None: nothing is tainted."""


def model_part(job: str, step: Step, layout: Layout | None, tainted: TaintedRanges) -> ModelPart:
    """A ring's part by the ranges of a step. layout: None where it is not known."""
    sizes = {p.name: p.elements for p in layout.parameters} if layout is not None else {}
    return ModelPart(
        job=job,
        step=step,
        all_elements=sum(sizes.values()) or None,
        tensors=tuple(
            TaintedTensor(
                job=job,
                parameter=name,
                tainted_elements=tainted_elements({name: ranges}),
                all_elements=sizes.get(name),
                since=tainted_since({name: ranges}),
                ranges=ranges[:RANGES_TOLD],
                ranges_left_out=max(0, len(ranges) - RANGES_TOLD),
            )
            for name, ranges in tainted.items()
        ),
    )


def model_taint(parts: Sequence[ModelPart], exact_step: Step | None) -> ModelTaint:
    """The union. parts: of one model, in the order of its jobs; exact_step: the newest step that is
    exact in all of them and can be restored."""
    tensors = [one for part in parts for one in part.tensors]
    count = sum(one.tainted_elements for one in tensors)
    sizes = [part.all_elements for part in parts if part.all_elements is not None]
    whole = sum(sizes) if len(sizes) == len(parts) and any(sizes) else None
    steps = [part.step for part in parts if part.step is not None]
    told = set(
        sorted(range(len(tensors)), key=lambda n: -tensors[n].tainted_elements)[:TENSORS_TOLD]
    )
    model = ModelTaint(
        jobs=tuple(part.job for part in parts),
        step=min(steps) if steps and len(steps) == len(parts) else None,
        tainted_elements=count,
        all_elements=whole,
        percent=_percent(count, whole),
        since=min((one.since for one in tensors), default=None),
        exact_step=exact_step,
        tensors=tuple(
            msgspec.structs.replace(one, model_percent=_percent(one.tainted_elements, whole))
            for number, one in enumerate(tensors)
            if number in told
        ),
        tensors_left_out=len(tensors) - len(told),
    )
    return msgspec.structs.replace(model, told=_finding(model) if count else None)


def exact_finding(model: ModelTaint) -> Finding:
    """Which step is exact in all of a model."""
    if model.exact_step is None:
        return NOT_EXACT_IN_ALL()
    return EXACT_IN_ALL(model.exact_step)


def _finding(model: ModelTaint) -> Finding:
    jobs = tuple(dict.fromkeys(one.job for one in model.tensors))
    more = len(jobs) - SHOWN
    told = {
        "elements": model.tainted_elements,
        "since": model.since,
        "jobs": NAMES(jobs) if more <= 0 else NAMES_AND_MORE(names=jobs[:SHOWN], more=more),
        "exact": exact_finding(model),
    }
    if model.all_elements is None:
        return PART_TAINTED(**told)
    return MODEL_TAINTED(all=model.all_elements, percent=model.percent, **told)


def _percent(count: int, whole: int | None) -> float | None:
    return None if whole is None else float(f"{100 * count / whole:.2g}")
