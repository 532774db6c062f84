"""What a captured collective is for in its job, as a code for programs; `Collective.meaning` has
the text. Roles that `flowcheck plan` also has use its codes (planning/ddp_collectives.py)."""

from __future__ import annotations

from enum import StrEnum

from flowcheck.wire.learn import Collective
from flowcheck.wire.learn.jobs.sharding.hybrid import SUMMED_PARTS
from flowcheck.wire.learn.search.gathers import GATHERED, SCATTERED
from flowcheck.wire.learn.search.parted import SUMMED
from flowcheck.wire.learn.trainer import habits


class SeenRole(StrEnum):
    """What a captured collective is for in its training job."""

    PARAMETER_COUNT = "parameter_count"
    PARAMETER_SHAPES = "parameter_shapes"
    INITIAL_WEIGHTS = "initial_weights"
    BUFFERS = "buffers"
    BUCKET_ORDER = "bucket_order"
    BUCKET_SIZES = "bucket_sizes"
    BUCKET = "bucket"
    USED_PARAMETERS = "used_parameters"
    GRADIENT_PART = "gradient_part"
    """The size of consecutive parameters: a gradient bucket, if a map of used parameters
    follows."""
    GATHERED_PARAMETERS = "gathered_parameters"
    """Sharded training (FSDP, ZeRO, Megatron-LM), as the next ones."""
    SCATTERED_GRADIENTS = "scattered_gradients"
    SUMMED_GRADIENTS = "summed_gradients"
    SUMMED_GRADIENT_PARTS = "summed_gradient_parts"
    OTHER = "other"
    """`Collective.meaning` has a meaning for which there is no code yet."""


_ROLES = {
    habits.COUNT: SeenRole.PARAMETER_COUNT,
    habits.SHAPES: SeenRole.PARAMETER_SHAPES,
    habits.WEIGHTS: SeenRole.INITIAL_WEIGHTS,
    habits.BUFFERS: SeenRole.BUFFERS,
    habits.ORDER: SeenRole.BUCKET_ORDER,
    habits.SIZES: SeenRole.BUCKET_SIZES,
    habits.BUCKET: SeenRole.BUCKET,
    habits.USED: SeenRole.USED_PARAMETERS,
    habits.PART: SeenRole.GRADIENT_PART,
    GATHERED: SeenRole.GATHERED_PARAMETERS,
    SCATTERED: SeenRole.SCATTERED_GRADIENTS,
    SUMMED: SeenRole.SUMMED_GRADIENTS,
    SUMMED_PARTS: SeenRole.SUMMED_GRADIENT_PARTS,
}


def role_of(collective: Collective) -> SeenRole | None:
    """The role of a captured collective; None: unknown."""
    return _ROLES.get(collective.meaning, SeenRole.OTHER) if collective.meaning else None
