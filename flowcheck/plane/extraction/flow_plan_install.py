"""Installs the plan of a flow into the extractor: struct fc_flow_plan and its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN
from flowcheck.wire.training_job.flow_plan import FlowPlan

PLAN_UNKNOWN = int(lib.FC_PLAN_UNKNOWN)
PLAN_IGNORE = int(lib.FC_PLAN_IGNORE)
PLAN_ACTIVE = int(lib.FC_PLAN_ACTIVE)
PLAN_SUSPENDED = int(lib.FC_PLAN_SUSPENDED)

NO_FRONTIER = 2**64 - 1
"""FC_NO_FRONTIER: messages are placed in any order."""
ONE_STEP = 2**64 - 1
"""Of struct fc_flow_plan's second_at."""
FLAG_UNKNOWN = (1 << 64) - 1
FIRST_FLAG = 1
"""LL's line flag of a connection's message 0: step + 1 (NCCL src/device/prims_ll.h)."""


def flow_plan_fields(plan: FlowPlan, *, first_step: int, frontier: int) -> dict[str, int]:
    """Of struct fc_flow_plan, for a flow whose messages are numbered from its start."""
    return {
        "state": PLAN_ACTIVE,
        "first_number": plan.first_number,
        "first_step": first_step,
        "first_sends": len(plan.first.sends),
        "each_sends": len(plan.each.sends),
        "first_at": 0,
        "each_at": len(plan.first.sends),
        "flag_offset": FIRST_FLAG if plan.flags_count else FLAG_UNKNOWN,
        "frontier": frontier,
        "stride": plan.stride,
        "phase": plan.phase,
        "second_at": ONE_STEP if plan.second_at is None else plan.second_at,
    }


def install(extractor: Any, flow: int, plan: FlowPlan, fields: dict[str, int]) -> int:
    """The code of fc_plan_install. flow: its index; fields: of struct fc_flow_plan."""
    sends = np.concatenate([plan.first.sends, plan.each.sends])
    sends["first_segment"][len(plan.first.sends) :] += len(plan.first.segments)
    segments = np.concatenate([plan.first.segments, plan.each.segments])
    return int(
        lib.fc_plan_install(
            extractor,
            flow,
            ffi.new("struct fc_flow_plan *", fields),
            ffi.from_buffer("struct fc_send[]", sends) if len(sends) else ffi.NULL,
            len(sends),
            ffi.from_buffer("struct fc_segment[]", segments) if len(segments) else ffi.NULL,
            len(segments),
        )
    )


def number_in_plan(plan: np.void, number: int) -> int:
    """What the plan of a flow calls its message `number`, which is known: queue pairs of one
    connection share one plan."""
    return number * int(plan["stride"]) + int(plan["phase"])


def numbers_in_plan(plans: NDArray[np.void], numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`number_in_plan` of many messages; NUMBER_UNKNOWN stays.

    plans: PLAN_DTYPE [messages], each of the message's flow; numbers: [messages].
    """
    own = numbers * plans["stride"].astype(np.uint64) + plans["phase"].astype(np.uint64)
    unknown = np.uint64(NUMBER_UNKNOWN)
    return np.where(numbers == unknown, unknown, own)
