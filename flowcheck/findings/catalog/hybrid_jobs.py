"""What a job of hybrid sharding (HSDP) rests on: its gradients are seen, its weights never are."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

GROUPS_BY_SIZE = Entry(
    "hybrid.groups_by_size",
    "one for each group of fully_shard, told apart by their sizes",
)
GROUPS_BY_ORDER = Entry(
    "hybrid.groups_by_order",
    "one for each group of fully_shard; those of one size come from the last module to the first",
)
ORDER_OF_EQUAL_GROUPS = Entry(
    "hybrid.order_of_equal_groups",
    "gradients of groups of one size are summed from the last module to the first, as a backward "
    "pass makes them: their sizes do not tell",
)
NO_GROUPS_FIT = Entry(
    "hybrid.no_groups_fit",
    "no sums that were read are those of the stated {groups} groups of fully_shard, each once an "
    "iteration",
    cause="The trainers have other groups, shards or types than the stated factory and mesh give, "
    "or these flows are of another communicator, as that of all ranks, on which a script saves, "
    "loads or waits.",
    remedy="If no job is followed, correct `factory`, `mesh` or `shard` in [sharded].",
)
START_AS_STATED = Entry(
    "hybrid.start_as_stated",
    "the trainers began with the weights that the stated factory makes after "
    "torch.manual_seed({seed}): no weight crosses the network",
)
START_NOT_WHOLE = Entry(
    "hybrid.start_not_whole",
    "the sums were not seen from the first one on, each whole: how many steps came before is "
    "unknown",
    cause="The capture began later than the trainers, or lost packets of their first iteration.",
    remedy="Start FlowCheck before the trainers.",
)
WEIGHTS_WERE_SENT = Entry(
    "hybrid.weights_were_sent",
    "the job file states the first weights, as of a job that sends none, and broadcasts as large "
    "as the model come before the first sum",
    cause="The script broadcasts its weights.",
    remedy="Leave `[model] seed` out of the job file: the weights are read from the wire.",
)
ONE_SHARD = Entry(
    "hybrid.one_shard",
    "this is shard {shard} of {shards} of each parameter and of its optimizer state, as the job "
    "file states; the shards count from 0",
)
SHARD_NOT_WHOLE = Entry(
    "hybrid.shard_not_whole",
    "{form} is a form of whole models, and this step has shard {shard} of {shards}; {formats} may "
    "hold one",
    cause="One port of those of a node was mirrored.",
    remedy="Restore with `--format` and one of these. If all shards are followed (`addresses`), "
    "leave `--job` out, and `--format dcp` has the whole model.",
)
ADDRESS_NOT_SEEN = Entry(
    "hybrid.address_not_seen",
    "nothing on the mirrored ports comes from or goes to {hosts}, which [sharded] `addresses` "
    "state for this shard; seen are {addresses}",
    cause="The port of this shard's GPU is not mirrored, or its NIC has another address.",
    remedy="Mirror the port too, or correct `addresses`: `flowcheck analyze FILE` prints those of "
    "a capture.",
)
ALL_SHARDS = Entry(
    "hybrid.all_shards",
    "the addresses {addresses} carry the shards of each parameter in this order, from 0, as the "
    "job file states",
)
SHARDS_DIFFER = Entry(
    "hybrid.shards_differ",
    "the shards have different values of {key}, which all of them must have alike",
    cause="They are of different steps, or of different models.",
    remedy="Restore each shard with `--job`, and compare their steps.",
)
SHARDS_LACK_ELEMENTS = Entry(
    "hybrid.shards_lack_elements",
    "the shards of {tensor} have {elements} elements, and it has {whole}",
    cause="The shards are not all there, or they were cut over different meshes.",
    remedy="Restore each shard with `--job`.",
)
SHARDS_AS_DCP = Entry(
    "hybrid.shards_as_dcp",
    "all {shards} shards of the model are followed, and they are joined as dcp alone, not as "
    "{form}; {formats} may hold one of them",
    remedy="Restore with `--format dcp`: a trainer with any mesh loads it, and torch's "
    "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch` makes one file of it. "
    "`--job K` restores one shard.",
)
SHARDS_TAINTED = Entry(
    "hybrid.shards_tainted",
    "step {step} of shard {shard} has tainted elements: such steps are not joined",
    cause="Packets of this shard were lost.",
    remedy="Restore an earlier step with `--step`, or each shard with `--job` and "
    "`--allow-tainted`.",
)
SHARDS_OF_LIVES = Entry(
    "hybrid.shards_of_lives",
    "the shards follow different lives of the job: {lives}",
    cause="Training began again, or a base was given, and only some of the shards took it.",
    remedy="Give all shards the checkpoint that the trainers resumed from: `flowcheck base "
    "FILE{this_run!o}`.",
)
OF_SHARD = Entry("hybrid.of_shard", "shard {shard}: {why}; no shard was given the file")
HAS_CHECKPOINT = Entry("hybrid.has_checkpoint", "all shards have {file} already")
BASE_UNFINISHED = Entry(
    "hybrid.base_unfinished",
    "step {step} of {file} was given to all {shards} shards, and {taken} of them are known to have "
    "it: they may stand on different states",
    cause="The command that gives it is at work, or was killed or refused between two shards.",
    remedy="If none is at work, give the file again, or a newer checkpoint of the trainers: "
    "`flowcheck base FILE{this_run!o}`.",
)
CARRIES_SHARD = Entry(
    "hybrid.carries_shard",
    "the address that is stated for shard {shard} carries shard {other}: what the optimizer keeps "
    "of its gradients equals that part of the file",
    cause="`addresses` in [sharded] are in another order than the shards.",
    remedy="Correct the order of `addresses`, and follow the job again from its start.",
)
SHARD_SAVED_BEFORE = Entry(
    "hybrid.shard_saved_before",
    "what was saved of step {step} of shard {shard} is not what its replica had at that step last: "
    "the job gave that past up",
    cause="Training went back to an earlier step after it was saved.",
    remedy="Restore another step with `--step`.",
)
PADDING_NOT_ZERO = Entry(
    "hybrid.padding_not_zero",
    "what fills shards up is not zero: the factory of [sharded] or its shard is another one",
    cause="The trainers cut their parameters otherwise than the stated factory does, or the "
    "mirrored port carries another shard than the stated one.",
    remedy="Correct `factory`, `mesh` or `shard` in [sharded].",
)
