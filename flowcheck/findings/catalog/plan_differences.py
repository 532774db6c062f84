"""`flowcheck plan --check`: how captures differ from the plan, and collectives that are in no
plan."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# The first collective of the captures that is not as planned.
DIFFERS_IN_START_UP = Entry(
    "plan.differs_in_start_up",
    "planned in the start-up: {what}, {planned_kind} of {planned_bytes:,} bytes; collective "
    "#{index} is {kind} of {bytes:,} bytes: {why}",
    also=("role", "bucket"),
)
DIFFERS_IN_ITERATION = Entry(
    "plan.differs_in_iteration",
    "planned in iteration {iteration}: {what}, {planned_kind} of {planned_bytes:,} bytes; "
    "collective #{index} is {kind} of {bytes:,} bytes: {why}",
    also=("role", "bucket"),
)
NO_ALL_REDUCE = Entry("plan.no_all_reduce", "the captures hold no all-reduce")
OTHER_KIND = Entry("plan.other_kind", "another kind")
OTHER_RANKS = Entry("plan.other_ranks", "its ring has {ranks} ranks, not {planned}")
OTHER_PROTOCOL = Entry("plan.other_protocol", "it is in {protocol}, not in {planned}")
OTHER_SIZE = Entry("plan.other_size", "another size")
OTHER_CHANNELS = Entry("plan.other_channels", "it is on {channels} channels, not on {planned}")
OTHER_NUMBERS = Entry("plan.other_numbers", "it says {number} at place {place}, not {planned}")
TOO_MUCH_BETWEEN = Entry("plan.too_much_between", "too much comes before the next planned one")

# Collectives that are in no plan.
OWN_COLLECTIVE = Entry("plan.own_collective", "{kind} of {bytes:,} bytes")
OWN_COLLECTIVE_AS_MAP = Entry(
    "plan.own_collective_as_map",
    "{kind} of {bytes:,} bytes, as large as the map that find_unused_parameters or static_graph "
    "sends",
)
