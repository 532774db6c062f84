"""Settings of a trainer that keep its job from being followed, by what they do on the wire."""

from __future__ import annotations

from flowcheck.findings.catalog.job_learning import STATE_MODEL
from flowcheck.findings.finding import Entry

# All-reduces beside the gradients, and their types.

BUCKET_TWIN = Entry(
    "trainer.bucket_twin",
    "every iteration has an all-reduce beside the gradients that is as large as one of the "
    "buckets: nothing on the wire tells which is the gradient",
    remedy="Reduce the other tensor in another size: pad it, or send it in two parts.",
)
FROZEN_OPEN = Entry(
    "trainer.frozen_open",
    "the start-up broadcast holds {bytes:,} bytes beside the parameters that take gradients, and "
    "no forward sent as many: frozen parameters, or buffers that are not broadcast, lie among the "
    "weights, and their places are unknown; or the parameters are of several dtypes: [model] "
    "factory tells both, by a module whose frozen parameters all have requires_grad=False",
    remedy=f"State the model: {STATE_MODEL}.",
)
UNKNOWN_HOOK_TYPE = Entry(
    "trainer.unknown_hook_type",
    "gradients are reduced in {gradient_bytes} bytes an element, the weights have "
    "{weight_bytes}: a communication hook sends another type than fp16_compress_hook and "
    "bf16_compress_hook do",
    remedy="Train without the communication hook.",
)
SEVERAL_DTYPES = Entry(
    "trainer.several_dtypes",
    "parameters of several dtypes: buckets are reduced in {sizes} bytes an element, and sizes do "
    "not tell here which parameters have which",
    remedy="Convert the model to one dtype.",
)
SEVERAL_DTYPES_BROADCAST = Entry(
    "trainer.several_dtypes_broadcast",
    "parameters of several dtypes: iteration 0 reduced buckets of {sizes} bytes, and the "
    "start-up broadcast the weights in parts of these sizes, one for each dtype; sizes do not "
    "tell here which parameters have which",
    remedy=f"State the model: {STATE_MODEL}.",
)
WEIGHTS_IN_PARTS = Entry(
    "trainer.weights_in_parts",
    "weights were broadcast in several parts, as weights of several dtypes are, and which "
    "parameters have which dtype is unknown",
    remedy=f"State the model: {STATE_MODEL}.",
)
GRADIENT_TYPE_OPEN = Entry(
    "trainer.gradient_type_open",
    "every iteration reduces as many elements in {one} bytes each as in {other}: nothing on the "
    "wire tells which are the gradients (fp16_compress_hook makes them smaller)",
    remedy="Leave out the all-reduces that repeat the buckets in another type.",
)
COMPRESSION_OPEN = Entry(
    "trainer.compression_open",
    "the buckets are as large on the wire in {one} bytes an element as in {other}: nothing tells "
    "whether a hook (fp16_compress_hook) compresses them",
)

# Communication hooks and reducers that send something else than DDP's buckets.

OTHER_HOOK = Entry(
    "trainer.other_hook",
    "no size of an element makes the buckets that were planned ({elements} elements) as large as "
    "the all-reduces seen: a communication hook (PowerSGD, for one) sends something else than "
    "gradients",
    remedy="Train without the communication hook.",
)
OTHER_HOOK_OR_SCALARS = Entry(
    "trainer.other_hook_or_scalars",
    "the start-up does not show the places of parameters of one element, and no places were "
    "found that give every planned bucket the size it has on the wire; or a communication hook "
    "(PowerSGD, for one) sends something else than gradients",
    remedy=f"State the model ({STATE_MODEL}), or train without the communication hook.",
)
LOW_RANK = Entry(
    "trainer.low_rank",
    "all-reduces of {one_bytes:,} and {other_bytes:,} bytes follow each other, as PowerSGD of "
    "rank {rank} makes them of these parameters: the gradients themselves are not on the wire",
    remedy="Train without the PowerSGD communication hook.",
)
AVERAGED = Entry(
    "trainer.averaged",
    "an all-reduce beside the buckets is as large as all parameters ({bytes:,} bytes) and holds "
    "nearly what they began with: the trainer averages models (post_localSGD_hook, local SGD), "
    "and what its ranks do between two averages is not on the wire",
    remedy="Train without local SGD.",
)
REDUCED_ONE_BY_ONE = Entry(
    "trainer.reduced_one_by_one",
    "every parameter's gradient was reduced by itself, {all_reduces} all-reduces of the sizes of "
    "{parameters} parameters, and no bucket plan was sent: DDP's Python reducer does so "
    "(torch.compile with optimize_ddp='python_reducer')",
    remedy="Leave torch.compile's optimize_ddp at its default.",
)
DELAYED = Entry(
    "trainer.delayed",
    "{bytes:,} bytes were broadcast just before DDP began, and every iteration reduces as many "
    "beside the gradients: delay_all_reduce_named_params, whose parameters DDP's start-up does "
    "not show",
    remedy="Leave out DDP's option delay_all_reduce_named_params.",
)
TWO_MODELS = Entry(
    "trainer.two_models",
    "a second model was wrapped on the same connections ({parameters} parameters beside the first "
    "one's {first_parameters}): nothing tells which gradients of two DistributedDataParallel "
    "wrappers are stepped when; FlowCheck follows one wrapper around both models",
    remedy="Wrap both models in one DistributedDataParallel.",
)
STEPS_ITS_OWN = Entry(
    "trainer.steps_its_own",
    "parameters of two bytes are gathered after every sum of their gradients, as by DeepSpeed's "
    "ZeRO: its optimizer steps float32 copies of its own, which are not on the wire; the job "
    'file\'s [sharded] style = "zero" follows the gathered ones',
    remedy='State `style = "zero"` in the job file\'s `[sharded]`; with `[model] factory` and '
    "`[optimizer]` the whole state is followed.",
)

# Maps of used parameters.

STATIC_GRAPH = Entry(
    "trainer.static_graph",
    "iteration 0 began with an all-reduce of one int32 for each of {parameters} parameters: "
    "static_graph=True, but two whole iterations between it and the bucket plan were not seen; "
    "{advice}",
    remedy="Leave out static_graph, or state the model where its parameters are of several dtypes.",
)
LEAVE_STATIC_GRAPH = Entry(
    "trainer.leave_static_graph", "without them the order of the buckets is unknown"
)
SKIPPED_UNUSED = Entry(
    "trainer.skipped_unused",
    "some iterations ended with the map of used parameters and had not reduced all buckets: "
    "skip_all_reduce_unused_params=True beside find_unused_parameters=True, which leaves buckets "
    "out",
    remedy="Leave out DDP's option skip_all_reduce_unused_params.",
)
UNUSED_OPEN = Entry(
    "trainer.unused_open",
    "iterations end with an all-reduce of one int32 for each of {parameters} parameters, and no "
    "bucket plan is sent: find_unused_parameters=True, but iterations do not always reduce all "
    "parameters in registration order, the last ones first (skip_all_reduce_unused_params=True "
    "leaves some out); {advice}",
    remedy="Leave out the option, or state the model where its parameters are of several dtypes.",
)
UNUSED_CUTS_OPEN = Entry(
    "trainer.unused_cuts_open",
    "find_unused_parameters=True: no bucket plan is sent, and the sizes on the wire allow {ways} "
    "ways to part {parameters} parameters into the buckets seen, none of which is told apart by "
    "DDP's usual bucket_cap_mb or by what the buckets hold",
    remedy="Leave out `find_unused_parameters`, or `bucket_cap_mb`.",
)
LEAVE_OPTION = Entry("trainer.leave_option", "the order of the buckets is unknown")

# All-reduces by trees.

TREE_OF_TWO = Entry(
    "trainer.tree_of_two",
    "{times} times both ranks sent each other {bytes:,} bytes, a whole bucket, where a ring sends "
    "it in chunks: all-reduces by a tree (NCCL_ALGO=Tree, or NCCL's own choice for few bytes), of "
    "which FlowCheck places no gradient; it follows NCCL_ALGO=Ring",
    remedy="Set `NCCL_ALGO=Ring` for the trainers.",
)
TREE_PASSES = Entry(
    "trainer.tree_passes",
    "{times} times {bytes:,} bytes, a whole bucket, were passed on in one piece, where a ring "
    "sends it in chunks: all-reduces by trees (NCCL_ALGO=Tree, or NCCL's own choice for few "
    "bytes), whose sums come down elsewhere",
    remedy="Mirror both directions of the rank's port, or set `NCCL_ALGO=Ring`.",
)
NVLS_PORTS_MISSING = Entry(
    "trainer.nvls_ports_missing",
    "NVLS trees: of the {gpus} GPUs of a node those numbered {seen} were seen to send sums to "
    "other nodes, those numbered {missing} were not; each carries its own share of every sum",
    cause="Not all NIC ports of the node are mirrored, or it has fewer NICs than GPUs and the "
    "trainers do something that FlowCheck does not know.",
    remedy="Mirror all NIC ports of one node, in both directions: `flowcheck ports layout.toml` "
    "names them.",
)
RING_PORTS_MISSING = Entry(
    "trainer.ring_ports_missing",
    "the start-up's count of ranks passes between the two nodes in one direction alone, though "
    "frames of both directions are there: GPUs {seen} of a node write here, and the port of one of "
    "{others} is not in the capture",
    cause="Where a node has several NICs, rings and trees pass through all of them.",
    remedy="Mirror all NIC ports of one node, in both directions: `flowcheck ports layout.toml` "
    "names them.",
)
TREES_BESIDE = Entry(
    "trainer.trees_beside",
    "several ranks write to one, or one to several: communicators of others, or all-reduces by "
    "trees (NCCL_ALGO=Tree, or NCCL's own choice), which FlowCheck follows where both directions "
    "of a node's ports are mirrored from the trainers' start-up on",
    remedy="Mirror both directions of the node's ports before the trainers start.",
)
TREES_UPSIDE_DOWN = Entry(
    "trainer.trees_upside_down",
    "all-reduces by trees: what should be their sums was sent before the parts, so that the number "
    "of ranks, and who stands above whom, is unknown",
)
TREES_UNREAD = Entry(
    "trainer.trees_unread",
    "some sends fit no collective: beside all-reduces by trees they may be of the gradients",
)
TREES_COPIES_DIFFER = Entry(
    "trainer.trees_copies_differ",
    "two copies of a gradient's sum differ: no trees that fit the sizes are the trainers'",
)
MAY_BE_TWO_TREES = Entry(
    "trainer.may_be_two_trees",
    "it is one all-reduce by a ring: two by trees have the same sizes, and some trees are here",
)
MAY_BE_BESIDE_TREES = Entry(
    "trainer.may_be_beside_trees",
    "it is of a ring: what trees send beside a ring may have its sizes",
)
