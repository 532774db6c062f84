"""Whether a job's weights, or its whole state, are those of a step of which some elements are
tainted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flowcheck.replica.element_patch import byte_runs, sections_of_elements
from flowcheck.replica.element_ranges import Ranges, count_elements
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.state_file.file_header import Description, Section

COMPARED_SHARE = 0.5
"""Least share of all elements that must be untainted, and so compared. A choice: what two jobs have
in common, such as layers that both took from one pretrained model, is often more than a small
share; that more than half of the elements lacked bytes is no loss of some frames any more."""


def equal_outside(
    description: Description, weights: np.ndarray, held: np.ndarray, tainted: Ranges
) -> bool:
    """Whether the weights have the bytes of a step in every element that is not tainted there, and
    those are at least COMPARED_SHARE of all.

    weights, held: as the replica's parameters; tainted: elements of the step.
    """
    own, other = (array.reshape(-1).view(np.uint8) for array in (weights, held))
    total = sum(p.elements for p in description.layout.parameters)
    compared = total - count_elements(tainted)
    if own.size != other.size or compared < COMPARED_SHARE * total:
        return False
    [section] = [s for s in description.sections if s.name == state_section_names.PARAMETERS]
    return compared > 0 and _equal_bytes(description, section, own, other, tainted)


def states_equal_outside(
    description: Description,
    sections: Mapping[str, np.ndarray],
    held: Mapping[str, np.ndarray],
    tainted: Ranges,
) -> bool:
    """Whether a state has the bytes of a step in every element that is not tainted there.

    sections, held: every flat array by name, as the replica's.
    """
    return all(
        _equal_bytes(description, section, sections[section.name], held[section.name], tainted)
        for section in sections_of_elements(description)
    )


def _equal_bytes(
    description: Description,
    section: Section,
    own: np.ndarray,
    other: np.ndarray,
    tainted: Ranges,
) -> bool:
    own, other = (array.reshape(-1).view(np.uint8) for array in (own, other))
    runs = byte_runs(description, section, tainted)
    runs = runs[np.argsort(runs[:, 0], kind="stable")]  # parameters of several types lie otherwise
    starts = np.append(0, runs[:, 1]).tolist()
    stops = np.append(runs[:, 0], own.size).tolist()
    return all(
        np.array_equal(own[start:stop], other[start:stop])
        for start, stop in zip(starts, stops, strict=True)
    )
