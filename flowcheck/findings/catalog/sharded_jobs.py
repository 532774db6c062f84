"""What a job of sharded training (FSDP) rests on, and why there is none."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Why it is not followed, or not all of it.

SHARDED = Entry(
    "sharded.parameters_only",
    "parameters are gathered and gradients reduce-scattered, as by FSDP or ZeRO: a gradient's sum "
    "never crosses the wire whole; the parameters do, in the type they are gathered in, and "
    "FlowCheck follows them without the optimizer's state",
    cause="Gradients of sharded training never cross the wire whole.",
    remedy="Restore the parameters with `flowcheck restore{this_run!o} --format safetensors --out "
    "FOLDER`; the trainer's own checkpoint has the optimizer's state.",
)
NO_ITERATION = Entry(
    "sharded.no_iteration",
    "no iteration was seen twice whose gathers tell where a step ends",
    cause="Two whole iterations must be seen.",
    remedy="Wait two iterations; state the model: `factory` in `[sharded]`.",
)
SEVERAL_COMMUNICATORS = Entry(
    "sharded.several_communicators",
    "{communicators} communicators gather parameters: nothing tells which of them to follow",
    cause="Several groups of ranks gather parameters by these ports.",
    remedy="State `hosts` of the job in the job file, or mirror ports of one group.",
)
LOST_BEFORE = Entry(
    "sharded.lost_before",
    "sends were lost before the second iteration: where it begins is not sure",
    cause="The first iterations were seen with gaps.",
    remedy="Wait for a restart of the job, or look where the frames were lost (`flowcheck "
    "status{this_run!o}`).",
)
TURNS_OPEN = Entry(
    "sharded.turns_open",
    "the start of connections of several queue pairs was not seen: whose turn it is, is not sure",
    cause="Only the beginning of a connection shows the order of its queue pairs.",
    remedy="Start FlowCheck before the trainers, or set `NCCL_IB_QPS_PER_CONNECTION=1` there.",
)
ONE_DIRECTION = Entry(
    "sharded.one_direction",
    "the mirrored links do not carry the part of rank {ranks_missing} of {ranks} of any "
    "unit: {missing_bytes:,} of {bytes:,} bytes a step are missing",
    remedy="Mirror both directions of the port.",
)
NO_WHOLE_ITERATION = Entry(
    "sharded.no_whole_iteration",
    "no iteration was seen of which every unit came whole",
    cause="Each iteration has gaps so far.",
    remedy="See where frames are lost (`flowcheck status{this_run!o}`): each further iteration is "
    "tried.",
)
GATHERED_ONCE = Entry(
    "sharded.gathered_once",
    "of two ranks that gather parameters once an iteration, nothing seen tells a later gather from "
    "a reduce-scatter of its size; a model that is resharded after the forward "
    "(reshard_after_forward=True) tells them apart",
    remedy="Train with reshard_after_forward=True.",
)
ODD_PART = Entry(
    "sharded.odd_part",
    "a rank's part of a unit is an odd number of bytes: its elements are of no type that "
    "FlowCheck knows",
    cause="The trainer sends something else than parameters of a known type.",
    remedy="State `[model] dtype`; if it is right, FlowCheck does not follow this job.",
)
RELEASE_OPEN = Entry(
    "sharded.release_open",
    "the sizes fit the partition of several NCCL releases",
    remedy="Mirror both directions of the port, or state NCCL's release: `nccl` in the job file.",
)

# What was read.

UNITS_REPEAT = Entry(
    "sharded.units_repeat",
    "{units} units are gathered in each of {iterations} iterations of {collectives} collectives: "
    "their content changes from one to the next",
)
GATHERED_AGAIN = Entry(
    "sharded.gathered_again",
    "{units} of them are gathered again within an iteration, with the same bytes",
)
HYBRID = Entry(
    "sharded.hybrid",
    "each rank's part of the gradients is summed over groups that hold all of the model (HSDP): "
    "FlowCheck reports the sums and does not follow them; it follows the parameters",
)

# What nothing seen could contradict.

RANKS_IN_ORDER = Entry(
    "sharded.ranks_in_order",
    "ranks lie along the ring in their own order: each rank's part goes where it sends it",
)
ENDS_OPEN = Entry(
    "sharded.ends_open",
    "each rank's part of a unit ends with the last line of its send: what fills a line up cannot "
    "be told from parameters unless the job file names the model ([sharded] factory)",
    remedy="Name the model: `factory` in the job file's `[sharded]`.",
)
SIZES_OPEN = Entry(
    "sharded.sizes_open",
    "units that fill as many lines are gathered in the order of the model's modules: their sizes "
    "on the wire are the same",
)
UNITS_BY_ORDER = Entry(
    "sharded.units_by_order",
    "{units} of {all_units} units are gathered once an iteration: only order tells them from "
    "gradients",
)
BEGUN_WITH = Entry(
    "sharded.begun_with",
    "the first iteration that was seen held the parameters that the trainer began with",
)
STEP_0_UNKNOWN = Entry(
    "sharded.step_0_unknown",
    "step 0 is the first iteration that was seen whole: nothing tells which of the trainer's steps "
    "it is",
)
STEP_0_LATER = Entry(
    "sharded.step_0_later",
    "step 0 is the trainer's step {step}: parts of what was gathered before were not seen",
)
