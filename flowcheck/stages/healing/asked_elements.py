"""Which elements the hook is asked for, and the patch that its answer makes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flowcheck.errors import StateError
from flowcheck.findings.catalog.trainer_hook import HOOK_OTHER_MODEL, HOOK_OTHER_STATE
from flowcheck.hook.protocol import Answer, AnsweredParameter, AskedParameter
from flowcheck.replica.element_patch import (
    ElementPatch,
    byte_runs,
    element_borders,
    sections_of_elements,
)
from flowcheck.replica.element_ranges import Ranges, cut_at, difference, union
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import Description

EVIDENCE = 16
"""Exact elements that are asked beside the tainted ones of a parameter: the step that the values
are of is the one at which they are equal to the replica's. A choice: each costs some bytes."""

LARGEST = 4
"""Parameters in which elements are asked so that jobs are told apart. A choice: an embedding is
among them, and layers that each gradient reaches."""


def asked_elements(tainted: Ranges, layout: Layout, *, several_jobs: bool = False) -> Ranges:
    """The tainted elements and the exact ones next to them. A parameter all of which is tainted
    has none; if all of the model is, nothing can show the step.

    several_jobs: the hook may be another job's of the same model and seed, which may be equal in
    what no gradient reaches, so some in the middle of the largest parameters are asked as well.
    """
    borders = element_borders(layout)
    whole = np.array([[0, sum(p.elements for p in layout.parameters)]], np.int64)
    pieces, owners = cut_at(tainted, borders)
    ends = np.append(borders[1:], whole[0, 1])
    near = []
    for owner in np.unique(owners):
        own = pieces[owners == owner]
        first, last = int(own[0, 0]), int(own[-1, 1])
        start, stop = int(borders[owner]), int(ends[owner])
        near.append([last, min(stop, last + EVIDENCE)])
        near.append([max(start, first - EVIDENCE), first])
    if several_jobs:
        sizes = ends - borders
        for owner in np.argsort(-sizes, kind="stable")[:LARGEST]:
            middle = int(borders[owner] + sizes[owner] // 2)
            near.append([middle, min(int(ends[owner]), middle + EVIDENCE)])
    wanted = np.array([one for one in near if one[0] < one[1]], np.int64).reshape(-1, 2)
    wanted = wanted[np.argsort(wanted[:, 0], kind="stable")]
    exact = difference(union([wanted]), tainted)
    if not len(exact):
        rest = difference(whole, tainted)[:1]
        exact = np.minimum(rest, rest[:, :1] + EVIDENCE)
    return union([tainted, exact])


def asked_parameters(elements: Ranges, layout: Layout) -> tuple[AskedParameter, ...]:
    """The same by parameter, as the hook takes it."""
    borders = element_borders(layout)
    pieces, owners = cut_at(elements, borders)
    within = pieces - borders[owners][:, None]
    return tuple(
        AskedParameter(
            int(owner), tuple((int(a), int(b)) for a, b in within[owners == owner].tolist())
        )
        for owner in np.unique(owners)
    )


def patch_of_answer(description: Description, elements: Ranges, answer: Answer) -> ElementPatch:
    """The patch of an answer to `asked_parameters`. Raises StateError where the trainer's model or
    optimizer is not what the replica is of."""
    layout = description.layout
    told = {one.index: one for one in answer.parameters}
    asked = [one.index for one in asked_parameters(elements, layout)]
    for index in asked:
        own, one = layout.parameters[index], told.get(index)
        if one is None or one.shape != own.shape or one.dtype != layout.dtype_of(own):
            theirs = "nothing" if one is None else f"{one.name} of {one.shape}, {one.dtype}"
            mine = f"{own.shape}, {layout.dtype_of(own)}"
            raise StateError(HOOK_OTHER_MODEL(parameter=own.name, own=mine, theirs=theirs))
    parts = {}
    for section in sections_of_elements(description):
        runs = byte_runs(description, section, elements)
        raw = b"".join(_bytes_of(told[index], section.name) for index in asked)
        if len(raw) != int((runs[:, 1] - runs[:, 0]).sum()):
            raise StateError(HOOK_OTHER_STATE(state=section.name))
        parts[section.name] = np.frombuffer(raw, np.uint8)
    return ElementPatch(elements, parts)


def _bytes_of(one: AnsweredParameter, section: str) -> bytes:
    if section == state_section_names.PARAMETERS:
        return one.value
    states: Mapping[str, bytes] = one.states
    return states.get(section, b"")
