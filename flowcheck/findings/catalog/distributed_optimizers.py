"""What a job of a sharded optimizer (ZeRO, Megatron-LM) rests on, and why there is none."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# Why it is not followed, or not all of it.

PARAMETERS_ONLY = Entry(
    "distributed_optimizer.parameters_only",
    "parameters are gathered after every step as [sharded] style states, in the type they are sent "
    "in, and FlowCheck follows them without the optimizer's state",
    cause="Optimizer states of sharded training never cross the wire.",
    remedy="Restore the parameters with `flowcheck restore{this_run!o} --format safetensors --out "
    "FOLDER`; the trainer's own checkpoint has the rest.",
)
INSTEAD_OF_STATE = Entry(
    "distributed_optimizer.instead_of_state",
    "parameters alone are followed, as they are gathered, although [optimizer] is stated: {why}",
    cause="The whole state of a ZeRO job is followed where each bucket of gradients is all-reduced "
    "whole (`use_multi_rank_bucket_allreduce` of DeepSpeed, its default) and its order is known.",
    remedy="State `[model] loss` or `order`, and `bucket_elements` in `[sharded]` as the trainer's "
    "`reduce_bucket_size`; restore the parameters with `--format safetensors`.",
)
GATHERS_COMPARED = Entry(
    "distributed_optimizer.gathers_compared",
    "{units} units of parameters are gathered behind each step, and the replica's are held against "
    "them",
)
MASTERS_BY_ROUNDED = Entry(
    "distributed_optimizer.masters_by_rounded",
    "the optimizer steps float32 copies of the parameters, which are not on the wire: they follow "
    "from the initial weights and the gradients, and what is gathered shows them rounded",
    until_audit=True,
)
MASTERS_COMPARED = Entry(
    "distributed_optimizer.masters_compared",
    "the optimizer steps float32 copies of the parameters, which are not on the wire: they follow "
    "from the initial weights and the gradients; rounded, those of {steps} steps were equal to "
    "what the trainers gathered, bit for bit, last of step {step}",
    until_audit=True,
)
GATHERED_DIFFERS = Entry(
    "distributed_optimizer.gathered_differs",
    "step {step} is not what the trainers gathered behind it: {elements} of {all_elements} "
    "elements differ, the first in {parameter}; no later step is called exact",
    section="replica",
    cause="The stated optimizer, its settings, the order of gradients in a bucket or the division "
    "after the sum are not the trainer's, or its kernels have another arithmetic.",
    remedy="Compare `[optimizer]`, `[model] order` and `[sharded]` with the script: the first "
    "parameter that differs names the place. Then `flowcheck base FILE{this_run!o}` goes on from "
    "the trainer's own bits.",
)
NOT_COMPARED = Entry(
    "distributed_optimizer.not_compared",
    "no step is compared with what the trainers gathered behind it: {why}",
    until_audit=True,
    cause="`[sharded]` and `[model]` state other models, or the model has several types.",
    remedy="State the same factory in both tables of the job file, or audit a checkpoint.",
)
OTHER_PARAMETERS = Entry(
    "distributed_optimizer.other_parameters",
    "what [sharded] factory returns has not just the parameters that [model] factory has, in one "
    "type",
    remedy="State the same factory in `[sharded]` and `[model]` of the job file.",
)
SUMS_EACH_PASS = Entry(
    "distributed_optimizer.sums_each_pass",
    "the trainers sum gradients {sums} times a step, as [sharded] sums_per_step states, and add "
    "the sums up by themselves",
    cause="DeepSpeed's stage 2 sums gradients in every accumulated backward pass; these sums are "
    "not added up here.",
    remedy="Train with stage 1, which sums once a step, or restore the parameters alone.",
)
NORM_ORDER = Entry(
    "distributed_optimizer.norm_order",
    "the squares of the norm that gradients are clipped by are added around the ring, from its "
    "second rank on: another algorithm of NCCL adds them in another order, and the last bit may "
    "differ",
    until_audit=True,
)
FUSED_PARTS = Entry(
    "distributed_optimizer.fused_parts",
    "a fused kernel of a CPU steps each rank's flat part, and the last elements of one have other "
    "bits than a parameter's: here it steps parameters",
    until_audit=True,
)
GATHERS_NOT_PLACED = Entry(
    "distributed_optimizer.gathers_not_placed",
    "no gathers of the stated units were found behind all steps: none is compared with what the "
    "trainer made of it",
    until_audit=True,
    cause="`[sharded]` states another model, other groups or another setting than the trainer has, "
    "or the trainer sums gradients several times a step.",
    remedy="Compare the job file's `[sharded]` with the script, `sums_per_step` too.",
)
NO_TWO_STEPS = Entry(
    "distributed_optimizer.no_two_steps",
    "no two steps of the stated trainer were seen, one behind the other, that make the same "
    "collectives",
    cause="Two whole steps of the stated style must be seen, one behind the other.",
    remedy="Wait two steps; if this stays, compare `[sharded] style` with the script.",
)
NO_RANKS = Entry(
    "distributed_optimizer.no_ranks",
    "no clear-to-send message names the ranks that write, so which rank's part a gather "
    "holds is unknown",
    remedy="Mirror both directions of the port.",
)
OTHER_ORDER = Entry(
    "distributed_optimizer.other_order",
    "units are gathered neither in the order of the buckets nor from the last bucket to the first "
    "([sharded] overlap_param_gather states which of the two)",
    remedy="State which of the two with `overlap_param_gather` in the job file's `[sharded]`, "
    "if the trainer gathers in one of them; another order is not followed.",
)
ORDER_OPEN = Entry(
    "distributed_optimizer.order_open",
    "whether units are gathered from the first bucket on or from the last is unknown, as "
    "they are as large both ways",
    remedy="State `overlap_param_gather` in the job file's `[sharded]`.",
)
CHANGES_TOO_MUCH = Entry(
    "distributed_optimizer.changes_too_much",
    "what would be gathered parameters changes by {change:.2f} of its norm from one step to the "
    "next: gradients do so, parameters do not; the trainer is not the one that [sharded] style "
    "states, or nothing ever changes",
    remedy="Check `style` in the job file's `[sharded]`.",
)
SCATTERED_TOO = Entry(
    "distributed_optimizer.scattered_too",
    "what would be reduce-scattered gradients holds what is gathered: the trainer is not the one "
    "that [sharded] style states",
    remedy="Check `style` in the job file's `[sharded]`.",
)
LIES_OTHERWISE = Entry(
    "distributed_optimizer.lies_otherwise",
    "what is gathered after the first step is nothing like the parameters that were sent before "
    "it, where [sharded] puts them: another factory, other groups of parameters, or a setting of "
    "the trainer that is not stated",
    remedy="Check `factory` and the other settings in the job file's `[sharded]`.",
)
NOT_SEEN = Entry(
    "distributed_optimizer.not_seen",
    'no {ranks} ranks make, twice or more, what [sharded] style = "{style}" and its model say: '
    "{sums}, then gathers of {gathered_bytes} bytes a rank",
    remedy="Check `style`, `factory` and the number of ranks in the job file.",
)
REDUCE_SCATTERS = Entry(
    "distributed_optimizer.reduce_scatters", "reduce-scatters of {scattered_bytes} bytes a rank"
)
ALL_REDUCES = Entry("distributed_optimizer.all_reduces", "all-reduces of {bytes:,} bytes in all")
NO_WHOLE_STEP = Entry(
    "distributed_optimizer.no_whole_step",
    "no step was seen of which every unit came whole",
    cause="Each step that was seen has gaps, or the capture ends in its first one.",
    remedy="Capture more steps, and see where frames are lost (`flowcheck status{this_run!o}`).",
)
ONE_DIRECTION = Entry(
    "distributed_optimizer.one_direction",
    "the mirrored links do not carry the part of rank {rank} of {ranks}: {missing_bytes:,} of "
    "{bytes:,} bytes a step are missing",
    remedy="Mirror both directions of the port.",
)
MAY_BE_ZERO = Entry(
    "distributed_optimizer.may_be_zero",
    "what is read as all-reduces of {bytes:,} bytes changes little from one to the next, as "
    "parameters do: a reduce-scatter of gradients and a gather of the parameters behind it "
    "(ZeRO-1, Megatron-LM's distributed optimizer) look like one all-reduce; FlowCheck follows "
    "them where the job file states [sharded] style",
    remedy="State `style` in the job file's `[sharded]`.",
)
MAY_BE_SHARDED = Entry(
    "distributed_optimizer.may_be_sharded",
    "what is gathered, {bytes:,} bytes at a time, changes little from one to the next, as "
    "parameters do whose optimizer is sharded over the ranks (DeepSpeed's ZeRO, Megatron-LM's "
    "distributed optimizer): FlowCheck follows them where the job file states [sharded] style",
    remedy="State `style` in the job file's `[sharded]`.",
)

# What was read.

UNITS_CHANGE = Entry(
    "distributed_optimizer.units_change",
    "{units} units are gathered in each of {steps} steps and change by {change:.1%} of their norm "
    "from one to the next",
)

# What nothing seen could contradict.

ONE_ALL_REDUCE = Entry(
    "distributed_optimizer.one_all_reduce",
    "it is one all-reduce: a reduce-scatter and the gather behind it look alike",
)
BY_STATEMENT = Entry(
    "distributed_optimizer.by_statement",
    "gradients are reduce-scattered and parameters gathered, and gradients are not all-reduced: "
    "[sharded] style says so, and what is gathered changes little from step to step",
)
STEP_0_AS_STEP_1 = Entry(
    "distributed_optimizer.step_0_as_step_1",
    "step 0 is held as step 1: what the parameters were before was not gathered",
)
STEP_1_LATER = Entry(
    "distributed_optimizer.step_1_later",
    "step 1 is the trainer's step {step}: before the steps that repeat it made other collectives",
)
STEP_1_UNKNOWN = Entry(
    "distributed_optimizer.step_1_unknown",
    "step 1 is the first step that was seen whole: nothing tells which of the trainer's steps it "
    "is",
)
SKIPPED_STEPS = Entry(
    "distributed_optimizer.skipped_steps",
    "a step that the trainer skips, as on an overflow of float16, gathers nothing and is not "
    "counted as a step",
)
