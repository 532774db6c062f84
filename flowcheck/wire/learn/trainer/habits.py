"""What a DDP trainer's start-up has said so far."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from flowcheck.findings.finding import Finding
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.trainer.parts import Gradients, Left
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.programs.ddp import (
    BUCKET,
    BUFFERS,
    COMPRESSED_BYTES,
    ORDER,
    PART,
    SIZES,
    USED,
)
from flowcheck.wire.programs.ddp_start import (
    COUNT,
    COUNT_BYTES,
    ELEMENT_BYTES,
    SHAPES,
    WEIGHTS,
)
from flowcheck.wire.training_job.operator_statements import StatedTensor

__all__ = [
    "BUCKET",
    "BUFFERS",
    "COMPRESSED_BYTES",
    "COUNT",
    "COUNT_BYTES",
    "ELEMENT_BYTES",
    "GRADIENTS",
    "ORDER",
    "OWN",
    "PART",
    "SHAPES",
    "SIZES",
    "USED",
    "WEIGHTS",
    "Habits",
    "Placed",
    "Types",
]

OWN = "stated model"
"""Licence of what a trainer without DistributedDataParallel sends."""
GRADIENTS = (BUCKET, USED)
"""What every iteration under the plan consists of."""


@dataclass(frozen=True, slots=True)
class Types:
    """Which parameters have elements of which size, where there are several."""

    shapes: ddp_messages.ParsedShapes
    each: tuple[int, ...]
    """[parameter] bytes of an element."""
    stated: tuple[str, ...] = ()
    """[parameter] dtype, where the model is stated: two may have one size; (): it is not."""
    sent: tuple[StatedTensor, ...] = ()
    """All that the start-up broadcasts hold, frozen parameters and buffers as well, where the model
    is stated; (): the parameters, and what follows them."""

    @property
    def beside(self) -> bool:
        """Something is sent that takes no gradient."""
        return len(self.sent) > len(self.each)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where parameters of one number stand among the others, which the start-up does not tell."""

    cuts: tuple[ddp_messages.ParsedShapes, ...]
    """The likeliest first; others that all sizes allow behind it, some of them where many are."""
    ways: int
    """How many are allowed."""
    by: Finding | None = None
    """What the first one is likelier by, or told by; None: by nothing."""
    sure: bool = True
    """Enough speaks for the first one to follow the job by it, as `assumed`."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What the start-up said so far."""

    stage: Stage = Stage.NOTHING
    types: Types | None = None
    """Told beforehand, by all of the stream."""
    placed: Placed | None = None
    """The same of parameters of one number."""
    told_plan: ddp_messages.Buckets = ()
    """The same of the buckets, by the numbers in them; (): nothing told them."""
    parameters: int = 0
    shapes: tuple[ddp_messages.ParsedShapes, ...] = ()
    each: tuple[int, ...] = ()
    """[parameter] bytes of an element, from the size of the weights; (): not told."""
    reduced: tuple[int, ...] = ()
    """[parameter] the same of its gradient in a bucket, from the first bucket; (): not told."""
    weights_bytes: int = 0
    """Of the first broadcast of weights, buffers and line slack included."""
    sent: int = 0
    """Start-up broadcasts of weights and buffers so far, where `types` are told."""
    order: tuple[int, ...] = ()
    bucket_count: int = 0
    buckets: ddp_messages.Buckets = ()
    next_bucket: int = 0
    parts: tuple[Cut, ...] = ()
    """What iteration 0 reduced so far, of the last parameters first."""
    stops: tuple[frozenset[Left], ...] = ()
    """[of `gradients`] which parameters it may not have reduced yet; (): all."""
    static: bool = False
    """A map of used parameters came before the first gradient: static_graph=True."""
    mapped: bool = False
    """A map follows the buckets of every iteration: find_unused_parameters=True."""
    plan_by: Finding | None = None
    """What tells its buckets from others as large on the wire; None: there are none."""
    plan_ways: tuple[tuple[ddp_messages.Buckets, tuple[int, ...]], ...] = ()
    """(buckets, bytes of each) that an iteration may have had which a map ended, where nothing
    tells them apart."""
    own: Finding | None = None
    """How a trainer without DDP lays gradients into all-reduces; None: there is a DDP."""
    own_others: tuple[Finding, ...] = ()
    """Other ways of it that fit the sizes."""

    @property
    def fresh(self) -> Habits:
        """As before the start-up, with what was told beforehand."""
        return Habits(types=self.types, placed=self.placed, told_plan=self.told_plan)

    @property
    def known_cuts(self) -> tuple[ddp_messages.ParsedShapes, ...]:
        """The parameters' shapes as they were told beforehand, the likeliest first; (): they were
        not."""
        if self.placed is not None:
            return self.placed.cuts
        return (self.types.shapes,) if self.types is not None else ()

    @property
    def scalars_open(self) -> int:
        """Places of parameters of one number that nothing tells apart; 0: there is one, or none."""
        if not self.shapes or not self.shapes[0].scalars or self.own:
            return 0
        if self.placed is not None:
            return self.placed.ways if self.placed.ways > 1 else 0
        return len(self.shapes) if len(self.shapes) > 1 else 0

    @property
    def scalars_unsure(self) -> bool:
        """So little speaks for one of these places that a replica by it would likely be wrong."""
        return self.scalars_open > 0 and not (self.placed is not None and self.placed.sure)

    @property
    def elements(self) -> int:
        return self.shapes[0].elements if self.shapes else 0

    @property
    def element_bytes(self) -> int:
        """Of all parameters alike; 0: not told."""
        return self.each[0] if self.each else 0

    @property
    def state_bytes(self) -> int:
        """Of all parameters; 0: not told."""
        return self.bytes_of(range(len(self.each)), self.each)

    @property
    def compressed(self) -> bool:
        """Gradients are reduced in another type than the parameters have."""
        return bool(self.reduced) and self.reduced != self.each

    @property
    def reductions(self) -> tuple[tuple[int, ...], ...]:
        """What `reduced` may be: as the parameters are, or compressed."""
        if self.reduced or not self.each:
            return (self.reduced,) if self.reduced else ()
        return tuple(dict.fromkeys((self.each, (COMPRESSED_BYTES,) * len(self.each))))

    @property
    def kinds(self) -> tuple[Hashable, ...]:
        """[parameter] its dtype as far as it is known: that of parameters of another is another."""
        return self.types.stated if self.types is not None and self.types.stated else self.each

    @property
    def pieces(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(parameters, their bytes) of each start-up broadcast of weights; where all that they hold
        is stated, (tensors of that, their bytes)."""
        if self.types is not None and self.types.sent:
            stated = [tensor.wire for tensor in self.types.sent]
            return ddp_messages.weight_broadcasts(
                [t.nbytes for t in stated], [t.dtype for t in stated]
            )
        counts = self.shapes[0].counts if self.each else ()
        sizes = [count * each for count, each in zip(counts, self.each, strict=False)]
        return ddp_messages.weight_broadcasts(sizes, self.kinds)

    def first_piece(self, shapes: ddp_messages.ParsedShapes, element_bytes: int) -> int:
        """Bytes of the first of `pieces`, if all parameters have elements of so many; 0: it is
        the only one."""
        sizes = [count * element_bytes for count in shapes.counts]
        first, *more = ddp_messages.weight_broadcasts(sizes)
        return first[1] if more else 0

    @property
    def first_buckets(self) -> ddp_messages.Buckets:
        """Iteration 0: a bucket of each dtype, the last one that came first."""
        kinds, every = self.kinds, range(len(self.each))
        groups = dict.fromkeys(kinds)
        return tuple(tuple(i for i in every if kinds[i] == g) for g in reversed(groups))

    @property
    def reduces(self) -> int:
        """All-reduces of an iteration under the plan, the map of used parameters included."""
        return len(self.buckets) + self.mapped

    @property
    def next_is_map(self) -> bool:
        return self.mapped and self.next_bucket == len(self.buckets)

    @property
    def gradients(self) -> tuple[Gradients, ...]:
        """What buckets may hold in iteration 0: gradients in their parameters' types, or a hook's;
        () where no weights were seen."""
        if not self.each:
            return ()
        counts, kinds = self.shapes[0].counts, self.kinds
        types = dict.fromkeys((self.each, (COMPRESSED_BYTES,) * len(self.each)))
        return tuple(Gradients.of(counts, self.each, each, kinds) for each in types)

    def bucket_bytes(self, bucket: int) -> int:
        """Bytes of one gradient bucket of the learned plan."""
        return self.bytes_of(self.buckets[bucket], self.reduced or self.each)

    def bucket_type_bytes(self, bucket: int) -> int:
        """Of an element there."""
        return (self.reduced or self.each)[self.buckets[bucket][0]]

    def bytes_of(self, parameters: Sequence[int], each: Sequence[int]) -> int:
        """Of `parameters` together; each: [parameter] bytes of an element."""
        counts = self.shapes[0].counts if parameters else ()
        return sum(counts[i] * each[i] for i in parameters)
