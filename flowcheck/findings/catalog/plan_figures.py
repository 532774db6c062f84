"""`flowcheck plan`: what its figures rest on, what memory is needed for (also of `flowcheck ports`
and `flowcheck up`), and with `--check` how captures differ from the plan."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

REVERSE_ORDER = Entry(
    "plan.reverse_order_of_gradients",
    "gradients become ready in the reverse of the registration order",
    remedy="Give `--loss`, a function whose backward pass shows the real order.",
)
ONE_RANK_BEHIND_PORT = Entry(
    "plan.one_rank_behind_port", "one rank behind the port, which carries all of its channels"
)
PROTOCOL_BY_SIZE = Entry(
    "plan.protocol_by_size",
    "LL below {bytes:,} bytes and Simple from there on: NCCL's cost model decides",
    remedy="Give `--protocol` where `NCCL_PROTO` is set.",
)
ONE_CHANNEL = Entry(
    "plan.one_channel",
    "1 channel",
    remedy="`NCCL_DEBUG=INFO` prints the real number: give it with `--channels`.",
)
NEWEST_NCCL = Entry(
    "plan.newest_nccl", "NCCL 2.29 or newer", remedy="Give the release with `--nccl`."
)
DEFAULT_OPTIMIZER = Entry(
    "plan.default_optimizer",
    "{optimizer}, as no optimizer is given",
    remedy="Give the trainer's with `--optimizer`.",
)
STAGING_TOO_SMALL = Entry(
    "plan.staging_too_small",
    "the default of [staging] size_bytes, {default}, is too small for this job",
    remedy="Set `[staging] size_bytes = {needed}` in the job file.",
    also=("needed",),
)

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
OTHER_NUMBERS = Entry(
    "plan.other_numbers",
    "the integer at index {place} of its data is {number}, and {planned} was planned",
)
TOO_MUCH_BETWEEN = Entry("plan.too_much_between", "too much comes before the next planned one")

# Collectives that are in no plan.
OWN_COLLECTIVE = Entry("plan.own_collective", "{kind} of {bytes:,} bytes")
OWN_COLLECTIVE_AS_MAP = Entry(
    "plan.own_collective_as_map",
    "{kind} of {bytes:,} bytes, as large as the map that find_unused_parameters or static_graph "
    "sends",
)

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
    "({needed:,} bytes): no job can be learned in it",
    remedy="`flowcheck plan {model!q} --world N` prints the size it needs.",
    also=("model",),
)
GRADIENTS_FOR_FOLDER = Entry(
    "memory.gradients_for_folder", "at most so many wait for gradient_log.folder"
)
GRADIENTS_FOR_COPIES = Entry(
    "memory.gradients_for_copies", "of the newest steps (copies.memory_bytes)"
)
GRADIENTS_OF_APPLIED_STEPS = Entry(
    "memory.gradients_of_applied_steps", "two logs of {steps:,} steps (gradient_log.taken_steps)"
)
