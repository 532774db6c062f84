"""What memory is needed for, in the account of `flowcheck plan`, `flowcheck ports` and
`flowcheck up`."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NEWEST_STEP = Entry("memory.newest_step", "the replica's newest step")
OPTIMIZER_STATES = Entry("memory.optimizer_states", "{optimizer}: {states}")
STEP_IN_PROGRESS = Entry("memory.step_in_progress", "new state beside the old one")
EARLIER_STEPS = Entry(
    "memory.earlier_steps",
    "{steps} whole steps: as many as fit into {keep_bytes:,} bytes (replica.keep_bytes), at most "
    "{most}",
)
GENERATIONS = Entry("memory.generations", "two generations")
STAGED = Entry("memory.staged", "start-up and first iterations")
RING_SLOTS = Entry(
    "memory.ring_slots", "{slots:,} slots of {slot_bytes:,} bytes for each mirrored port"
)
OF_GROUPS = Entry("memory.of_groups", "{why}, {groups} groups")
RINGS_OF_QUEUES = Entry(
    "memory.rings_of_queues", "{slots:,} slots for each of {queues} queues, flow tables"
)
COPY_OF_STEP = Entry(
    "memory.copy_of_step",
    "replica.keep_bytes leaves no room for an earlier step, so each step is copied before it is "
    "{done}; keep_bytes = {keep_bytes:,} takes as much memory and keeps the step",
)
GRADIENTS_BEFORE_BASE = Entry(
    "memory.gradients_before_base",
    "at most (gradient_log.memory_bytes), when gradients have to wait for a base",
)
STAGING_BELOW_ITERATION = Entry(
    "memory.staging_below_iteration",
    "staging.size_bytes = {stated:,} is less than start-up and one iteration of this model "
    "({needed:,} bytes): no job can be learned in it; `flowcheck plan {model!q} --world N` prints "
    "the "
    "size it needs",
)
GRADIENTS_OF_APPLIED_STEPS = Entry(
    "memory.gradients_of_applied_steps", "two logs of {steps:,} steps (gradient_log.taken_steps)"
)
