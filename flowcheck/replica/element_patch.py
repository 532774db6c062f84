"""The trainer's values of some elements of a replica: what its tainted elements are replaced by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from flowcheck.replica.element_ranges import Ranges, cut_at, no_ranges
from flowcheck.replica.optimizer.state_sections import layout_of_section
from flowcheck.replica.param_layout import FlatParameter, Layout, dtype_size_bytes
from flowcheck.replica.state_file.file_header import Description, EntryPer, Section

ByteRuns = NDArray[np.int64]
"""[n, 2] first byte of a section and the one behind the last, in the order of the elements."""


@dataclass(frozen=True, slots=True)
class ElementPatch:
    """Values of elements at one step."""

    elements: Ranges
    """Counted over all parameters as in taint.py."""
    parts: dict[str, NDArray[np.uint8]]
    """{section: the bytes of these elements in it, range after range}, of each section with values
    of elements."""

    def of(self, description: Description, elements: Ranges) -> ElementPatch:
        """The part of it for some of its elements."""
        parts: dict[str, NDArray[np.uint8]] = {}
        for section in description.sections:
            if section.name not in self.parts:
                continue
            held, whole = _places(description, section, self.elements)
            wanted, runs = _places(description, section, elements)
            sizes, raw = whole[:, 1] - whole[:, 0], self.parts[section.name]
            at = np.searchsorted(held[:, 0], wanted[:, 0], side="right") - 1
            width = sizes[at] // (held[at, 1] - held[at, 0])
            begins = (np.cumsum(sizes) - sizes)[at] + (wanted[:, 0] - held[at, 0]) * width
            lengths = runs[:, 1] - runs[:, 0]
            cut = [raw[begin : begin + n] for begin, n in zip(begins, lengths, strict=True)]
            parts[section.name] = _joined(cut)
        return ElementPatch(elements, parts)


def patch_of_sections(
    description: Description, sections: Mapping[str, np.ndarray], elements: Ranges
) -> ElementPatch:
    """Cut out of whole flat sections, as the replica has them."""
    parts: dict[str, NDArray[np.uint8]] = {}
    for section in sections_of_elements(description):
        runs = byte_runs(description, section, elements)
        raw = sections[section.name].reshape(-1).view(np.uint8)
        parts[section.name] = _joined([raw[start:stop] for start, stop in runs])
    return ElementPatch(elements, parts)


def patch_sections(
    description: Description, sections: Mapping[str, np.ndarray], patch: ElementPatch
) -> None:
    """Writes the values of a patch into whole flat sections."""
    for section in description.sections:
        if section.name not in patch.parts:
            continue
        raw, at = sections[section.name].reshape(-1).view(np.uint8), 0
        for start, stop in byte_runs(description, section, patch.elements).tolist():
            raw[start:stop] = patch.parts[section.name][at : at + stop - start]
            at += stop - start


def patch_fits(description: Description, patch: ElementPatch) -> bool:
    """Whether a patch that was read has the bytes of all its elements in each section that has
    values of elements, and no others."""
    flat = patch.elements.ravel()
    total = sum(p.elements for p in description.layout.parameters)
    if not len(flat) or flat[0] < 0 or flat[-1] > total or (np.diff(flat) <= 0).any():
        return False
    expected: dict[str, int] = {}
    for section in sections_of_elements(description):
        runs = byte_runs(description, section, patch.elements)
        expected[section.name] = int((runs[:, 1] - runs[:, 0]).sum())
    return expected == {name: part.size for name, part in patch.parts.items()}


def not_finite(description: Description, patch: ElementPatch) -> str | None:
    """The first section in which a patch has a value that is infinite or no number; None: there is
    none. Of sections whose tensors lie at places of their own nothing is known."""
    for section in sections_of_elements(description):
        if section.per is not EntryPer.ELEMENT or section.name not in patch.parts:
            continue
        own, raw, at = layout_of_section(section, description.layout), patch.parts[section.name], 0
        pieces, owners = cut_at(patch.elements, element_borders(own))
        for number in np.unique(owners).tolist():
            dtype = own.dtype_of(own.parameters[number])
            count = int((pieces[owners == number] @ (-1, 1)).sum()) * dtype_size_bytes(dtype)
            values = torch.from_numpy(raw[at : at + count].copy()).view(getattr(torch, dtype))
            if not bool(values.isfinite().all()):
                return section.name
            at += count
    return None


def sections_of_elements(description: Description) -> list[Section]:
    """Those with values of elements, parameters first."""
    held = EntryPer.ELEMENT, EntryPer.PLACE
    return [section for section in description.sections if section.per in held]


def element_borders(layout: Layout) -> NDArray[np.int64]:
    """[parameter] the number of its first element."""
    return np.cumsum([0, *(p.elements for p in layout.parameters)])[:-1]


def byte_runs(description: Description, section: Section, elements: Ranges) -> ByteRuns:
    """Where the elements lie in a section. Tensors that are no value of elements, such as a count
    of steps, have none: they are exact whatever is missing."""
    return _places(description, section, elements)[1]


def _places(
    description: Description, section: Section, elements: Ranges
) -> tuple[Ranges, ByteRuns]:
    """(the elements cut at the borders of parameters, as far as the section has values of them,
    where each of these pieces lies)"""
    borders = element_borders(description.layout)
    pieces, owners = cut_at(elements, borders)
    starts, sizes = _tensors(description, section)
    own = sizes[owners] > 0
    pieces, owners = pieces[own], owners[own]
    if not len(pieces):
        return no_ranges(), no_ranges()
    within = pieces - borders[owners][:, None]
    return pieces, starts[owners][:, None] + within * sizes[owners][:, None]


def _tensors(
    description: Description, section: Section
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """([parameter] first byte of its tensor in the section, bytes of an element; 0: it has none)"""
    parameters = description.layout.parameters
    starts, sizes = np.zeros(len(parameters), np.int64), np.zeros(len(parameters), np.int64)
    if section.per is EntryPer.ELEMENT:
        own = layout_of_section(section, description.layout)
        for number, p in enumerate(own.parameters):
            size = dtype_size_bytes(own.dtype_of(p))
            starts[number], sizes[number] = p.start * (1 if p.dtype else size), size
    elif section.per is EntryPer.PLACE:
        for place in section.places:
            p = parameters[place.parameter]
            if place.shape == p.shape and _lies_alike(place.stride, p):
                starts[place.parameter] = place.start
                sizes[place.parameter] = place.size_bytes // max(p.elements, 1)
    return starts, sizes


def _lies_alike(stride: tuple[int, ...], parameter: FlatParameter) -> bool:
    pairs = zip(parameter.shape, stride, parameter.stride, strict=True)
    return all(a == b for size, a, b in pairs if size > 1)


def _joined(parts: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)
