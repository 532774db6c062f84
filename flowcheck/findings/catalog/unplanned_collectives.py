"""Collectives that lie between the steps of a job and belong to no step."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

MAP_LEFT_OUT = Entry(
    "extra.map_left_out",
    "an all-reduce of one int32 for each parameter lies where the plan has no such all-reduce: "
    "skip_all_reduce_unused_params=True leaves buckets out, or find_unused_parameters was switched "
    "on since the previous incarnation",
    remedy="Leave out DDP's option skip_all_reduce_unused_params.",
)
UNIT_LEFT_OUT = Entry(
    "extra.unit_left_out",
    "something of the size of a unit of parameters lies where the plan has no unit: the trainer "
    "gathered units in another order than before, as it does when it gathers them all at once for "
    "a checkpoint, or gathered one once more",
)
BUCKET_BY_ORDER = Entry(
    "extra.bucket_by_order",
    "an extra collective has the size of a bucket: only the order tells them apart, buckets first",
)
MESSAGES_LEFT_OUT = Entry(
    "extra.messages_left_out",
    "{messages} messages that are no known collective lie before it",
)
