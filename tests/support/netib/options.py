"""What a generated job is like, and what is true of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from support.netib.manners import Manners

LL, LL128, SIMPLE = "LL", "LL128", "Simple"


@dataclass(frozen=True)
class Options:
    """One job and the mirror that watches it; every random choice follows from `seed`."""

    seed: int = 1
    ranks: int = 2
    gpus: int = 1
    """Ranks of a node; they stand next to each other in every ring. Mirror points are nodes'."""
    orders: int = 0
    """Ways round a node's GPUs, drawn at random; channel c takes way c mod so many. 0: by rank."""
    channels: int = 1
    version: tuple[int, int] = (2, 19)
    protocol: str = LL
    mix: tuple[tuple[int, str], ...] = ()
    """(bytes, protocol) in rising order: collectives of at most so many bytes use that one."""
    dtype: str = "float32"
    dtypes: tuple[str, ...] = ()
    """Of each parameter; empty: all are of `dtype`."""
    compress: str = ""
    """The type a hook reduces gradients in; empty: there is none."""
    shapes: tuple[tuple[int, ...], ...] = ((64, 100), (64,), (10, 64), (10,))
    steps: int = 4
    caps_bytes: tuple[int, int] = (1 << 20, 25 << 20)
    """Of the first bucket, and of the others."""
    buffers: int = 0
    """Elements of the module's buffers (in `dtype`), broadcast at each forward; 0: none."""
    frozen: tuple[tuple[int, ...], ...] = ()
    """[before which parameter, size ...] of parameters without a gradient, in order."""
    counters: int = 0
    """int64 buffers beside them, as BatchNorm's num_batches_tracked."""
    metric_every: int = 0
    find_unused: bool = False
    static_graph: bool = False
    nccl2: bool = False
    """torch's nccl2 is the backend: the list form of an all-gather is a broadcast of each rank,
    grouped."""
    fused: bool | None = None
    """NCCL makes one gather of grouped broadcasts; None: as the version does by default."""
    speed_updates: int = 0
    """Behind so many clear-to-sends of a connection its receiver tells how fast its links are; 0:
    never."""
    habit: str = ""
    """What the script does beside DDP, or in place of its gradients: a name of habits.py."""
    pipeline_bytes: int = 0
    """Bytes sent and received per step in a second communicator; 0: there is none."""
    pairs: tuple[tuple[int, int], ...] = ()
    """(rank that sends, rank that receives) of each send of so many bytes, each two ranks a
    communicator of their own; (): to and from a neighbour that is no rank of the job."""
    pairs_first: int = 0
    """Sends of each of them before DDP begins."""
    sharded: bool = False
    """Instead of DDP, every shape is a layer whose parameters each rank holds a block of: gathered
    forward and backward, their gradients reduce-scattered."""
    parted: str = ""
    """Instead of DDP, "deepspeed" (ZeRO stages 1 and 2) or "megatron" (its distributed optimizer):
    ranks step a part of the parameters each, which are gathered."""
    unit_elements: int = 0
    """A unit of it is closed once it holds so many; 0: there is one."""
    late: bool = False
    """Its units are gathered in the next forward, the last one first."""
    forced: int = 0
    """Behind so many steps they are gathered at once, in their own order, as for a checkpoint."""
    skipped: int = 0
    """The step of so much is not taken, as on an overflow: nothing is gathered behind it."""
    tensor_layers: int = 0
    """Layers whose activations two ranks, one of them mirrored, all-reduce in a communicator of
    their own, forward and backward; 0: there is none."""
    tensor_near: bool = False
    """The other of the two is the mirrored rank's neighbour in the data-parallel ring."""
    metrics_group: bool = False
    """Metrics are reduced in a second communicator of the same ranks."""
    metric_trees: int = 0
    """Elements of these metrics, which then go by that communicator's trees; 0: round its ring."""
    beside_first: bool = False
    """The other communicators are connected before the data-parallel one."""

    ipv6: bool = False
    mtu: int = 1024
    qps: int = 1
    split: bool | None = None
    """Every message over all QPs; None: as the version does by default."""
    adaptive: bool = False
    adaptive_over: int = 8192
    """Sends of more bytes are closed by an empty write that tells their size."""
    pieces: bool = False
    """And each packet of these is a write of its own, as some NICs make them."""
    random_qpns: bool = False
    tree_below: int = 0
    """All-reduces of fewer bytes go by NCCL's double binary tree."""
    tree_found: int = 1
    """Channels that NCCL's search found; it doubles them, the later half has the second tree."""
    tree_pattern: str = "balanced"
    """Which of a node's GPUs the other nodes' trees end at: the first one ("tree"); the first, and
    the second for one child ("balanced") or for both ("split")."""
    tree_chain: str = "ring"
    """A node's GPUs in a tree, the parent's end first: as the ring has them, or "back": its first
    one, then the others from the last on."""
    nvls_above: int = 0
    """All-reduces of as many bytes or more go by NVLS trees; 0: none do."""
    nvls_channels: int = 16
    nvls_start: int = 0
    """Bytes of a chunk to begin with; 0: by release."""
    nics: int = 0
    """NICs of a node then, each with a GPU that writes to other nodes; 0: as many as GPUs."""
    ring_exits: str = ""
    """Where a channel's ring leaves a node: at the last GPU of its order, by the channel's NIC;
    "own": each channel enters at a GPU of its own and leaves at the next, or where nodes take turns
    at the former ("crossed"), each by that GPU's NIC."""
    registered: bool = False
    """Broadcasts and gathers in Simple go straight to registered user buffers."""
    grouped: int = 1
    """Receives of the pipeline that one clear-to-send grants (PXN)."""

    mirrored: tuple[int, ...] = (0,)
    directions: str = "both"
    rails: int = 1
    """NIC ports of a node; channel c uses port c mod rails. Each is a mirror point of its own."""
    pat: bool = False
    """All-gathers of a sharded job go by NCCL's parallel aggregated trees."""
    puts: int = 0
    """Puts of others on the mirrored port, each with a signal behind it."""
    bonded: int = 1
    """NIC ports that NCCL takes for one (2.30 and later); all of them are one mirror point."""
    wrap: str = ""
    storage: int = 0
    """Storage requests and answers of others on the mirrored port."""
    cnps: bool = False
    chatter: bool = False
    """ARP, LLDP and pause frames."""
    start_step: int = 0
    start_inside: bool = False
    """The capture begins amid a message of `start_step`'s first bucket."""
    lose: int = 0
    grants_lost: tuple[int, ...] = ()
    """Clear-to-send messages that each mirror point lost, counted from 0 in the order of sight."""
    duplicates: int = 0
    retransmits: int = 0
    manners: Manners = field(default_factory=Manners)

    @property
    def heads(self) -> int:
        return self.nics or self.gpus

    @property
    def ports(self) -> int:
        """Of a node."""
        return self.heads if self.nvls_above else self.rails

    @property
    def nodes(self) -> int:
        return self.ranks // self.gpus

    @property
    def splits(self) -> bool:
        return self.version < (2, 20) if self.split is None else self.split

    @property
    def fuses(self) -> bool:
        return self.version >= (2, 29) if self.fused is None else self.fused

    def protocol_for(self, size_bytes: int) -> str:
        for limit, protocol in self.mix:
            if size_bytes <= limit:
                return protocol
        return self.protocol


@dataclass
class Collective:
    """One collective (or p2p transfer) as the ranks ran it."""

    kind: str
    communicator: str
    protocol: str
    result: bytes
    visible: float = 1.0
    """Share of an all-reduce's elements that pass the mirror points in final form."""
    step: int = -1
    """Training step, -1 before the first."""
    gradient: bool = False
    complete: bool = True
    """Whether the capture began before it did."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.result).hexdigest()


@dataclass
class Truth:
    """What a decoder of the capture ought to find."""

    options: Options
    weights: bytes = b""
    """Every parameter in registration order."""
    beside: bytes = b""
    """Frozen parameters in registration order, then buffers of their type."""
    buckets: list[list[int]] = field(default_factory=list)
    """Parameters of each bucket, after the rebuild where there is one."""
    parted: list[bytes] = field(default_factory=list)
    """[step] every parameter behind it, in registration order, where options.parted."""
    collectives: list[Collective] = field(default_factory=list)
    dropped: list[tuple[str, int]] = field(default_factory=list)
    """(file, frame number from 0 among those the mirror would have carried) of lost frames."""

    @property
    def gradients(self) -> list[Collective]:
        return [each for each in self.collectives if each.gradient]
