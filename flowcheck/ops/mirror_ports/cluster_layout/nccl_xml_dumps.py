"""Reads NCCL_GRAPH_DUMP_FILE and NCCL_TOPO_DUMP_FILE: the NICs of each channel, the nearest NIC
of each GPU.

Sources: NCCL src/graph/search.cc (ncclTopoGetXmlFromGraph, ncclTopoGetXmlFromChannel: a channel is
the NIC it comes by, its GPUs in order, the NIC it leaves by), src/graph/xml.cc (ncclTopoXmlLoad*).
A dump is one process's view of one communicator, the last it made: it does not
hold the order of nodes.
"""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_layouts import (
    CHANNELS_OF_OTHER_GPUS,
    DUMP_HAS_DOCTYPE,
    DUMP_NUMBER,
    DUMP_OF_ONE_NODE,
    DUMP_TOO_DEEP,
    DUMP_WITHOUT_NETWORK,
    NO_RING_CHANNEL,
    NOT_A_DUMP,
    NOT_XML,
    TOO_LARGE,
    UNREADABLE,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.mirror_ports.cluster_layout.channel_rings import ChannelNics

MOST_BYTES = 8 << 20
"""Largest dump, bytes. A choice: a larger file is not an NCCL dump and is refused unread."""
MOST_DEPTH = 32
"""Largest nesting depth. A choice: deeper than NCCL's topology; stops files that are made to
exhaust memory."""
MOST_ELEMENTS = 100_000
"""Most elements in a file. A choice: stops files that are made to exhaust memory."""
RING_GRAPH = 0
"""Id of the ring graph in a dump (src/init.cc, initTransportsRank)."""
ALTERNATE = 2
"""Value of a graph's crossnic with which a ring's channels alternate between two NICs."""
LOCAL_BITS = 56
"""Bits of the device number; the system number is above them (src/graph/topo.h, NCCL_TOPO_ID)."""

Attributes = dict[str, str]
Path_ = tuple[int, ...]


class NcclDump(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of one dump: `ways` from a graph dump, `near` from a topology dump."""

    ways: ChannelNics | None = None
    near: dict[int, int] | None = None
    """GPU -> NIC with the shortest path to it; None: a graph dump."""


def read_dump(path: Path) -> NcclDump:
    """Reads a file that NCCL wrote for NCCL_GRAPH_DUMP_FILE or NCCL_TOPO_DUMP_FILE. Raises
    ConfigError for any other file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError("--graph", str(path), TOO_LARGE(MOST_BYTES))
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError("--graph", str(path), UNREADABLE(error.strerror)) from error
    reader = _Reader(str(path))
    reader.read(content)
    if reader.root == "graphs":
        return NcclDump(ways=reader.ways())
    if reader.root == "system":
        return NcclDump(near=reader.near())
    raise ConfigError("--graph", str(path), NOT_A_DUMP())


class _Reader:
    """Elements as they come; no document type, so no entity, is taken."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root = ""
        self.elements = 0
        self.open: list[tuple[str, int]] = []
        """(tag, number) of each element around."""
        self.in_ring = False
        self.crossnic = 0
        self.channels: list[list[tuple[str, int]]] = []
        self.gpus: dict[int, Path_] = {}
        self.nets: dict[int, Path_] = {}

    def read(self, content: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._doctype
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            raise self._wrong(NOT_XML(str(error))) from error

    def ways(self) -> ChannelNics:
        if not self.channels:
            raise self._wrong(NO_RING_CHANNEL())
        orders = [tuple(n for tag, n in each if tag == "gpu") for each in self.channels]
        nics = [[n for tag, n in each if tag == "net"] for each in self.channels]
        gpus = set(orders[0])
        if any(set(order) != gpus or len(order) != len(gpus) for order in orders):
            raise self._wrong(CHANNELS_OF_OTHER_GPUS())
        if any(len(pair) != 2 for pair in nics):
            raise self._wrong(DUMP_OF_ONE_NODE())
        return ChannelNics(
            gpus=tuple(sorted(gpus)),
            nics=tuple((pair[0], pair[1]) for pair in nics),
            alternate=self.crossnic == ALTERNATE and len(nics) % 2 == 0,
        )

    def near(self) -> dict[int, int]:
        if not self.gpus or not self.nets:
            raise self._wrong(DUMP_WITHOUT_NETWORK())
        return {gpu: self._nearest(gpu, path) for gpu, path in self.gpus.items()}

    def _nearest(self, gpu: int, path: Path_) -> int:
        """The longest common way down; of equals, by turns, as each GPU has its own."""

        def common(net: int) -> int:
            pairs = zip(path, self.nets[net], strict=False)
            return next((n for n, (a, b) in enumerate(pairs) if a != b), 0)

        best = max(map(common, self.nets))
        nets = sorted(net for net in self.nets if common(net) == best)
        alike = sorted(g for g, p in self.gpus.items() if p[:best] == path[:best])
        return nets[alike.index(gpu) % len(nets)]

    def _begin(self, tag: str, attributes: Attributes) -> None:
        self.elements += 1
        if self.elements > MOST_ELEMENTS or len(self.open) >= MOST_DEPTH:
            raise self._wrong(DUMP_TOO_DEEP())
        above = self.open[-1][0] if self.open else ""
        if not self.open:
            self.root = tag
        self.open.append((tag, self.elements))
        if tag == "graph" and above == "graphs":
            self.in_ring = self._number(attributes, "id") == RING_GRAPH
            if self.in_ring:
                self.crossnic = self._number(attributes, "crossnic", 0)
        elif tag == "channel" and above == "graph" and self.in_ring:
            self.channels.append([])
        elif tag in ("gpu", "net") and above == "channel" and self.in_ring:
            self.channels[-1].append((tag, self._number(attributes, "dev")))
        elif tag in ("gpu", "net") and self.root == "system":
            into = self.gpus if tag == "gpu" else self.nets
            into[self._number(attributes, "dev")] = tuple(number for _, number in self.open)

    def _end(self, tag: str) -> None:
        self.open.pop()

    def _doctype(self, *_: object) -> None:
        raise self._wrong(DUMP_HAS_DOCTYPE())

    def _number(self, attributes: Attributes, key: str, default: int | None = None) -> int:
        text = attributes.get(key)
        if text is None and default is not None:
            return default
        try:
            found = int(text or "", 16 if (text or "").lower().startswith("0x") else 10)
        except ValueError as error:
            raise self._wrong(DUMP_NUMBER(key=key, text=repr((text or "")[:40]))) from error
        if found < 0:
            raise self._wrong(DUMP_NUMBER(key=key, text=str(found)))
        return found & ((1 << LOCAL_BITS) - 1)

    def _wrong(self, why: Finding) -> ConfigError:
        return ConfigError("--graph", self.name, why)
