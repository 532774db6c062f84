"""What a learned data-parallel job rests on, and why there is none yet."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_FROM_START = "Only the start-up of the trainers tells this, and it was not seen."

STATE_MODEL = '[model] factory = "file.py:function" in the job file, or analyze --model'
"""How an operator states the model."""

# Why there is no job yet.

START_UP_NOT_SEEN = Entry(
    "job.start_up_not_seen",
    "DDP's start-up messages were not seen: parameters and their order are unknown (the capture "
    "began later, DDP was called with init_sync=False, or gradients are reduced without DDP)",
    remedy=f"Start the capture before the trainers, or state the model: {STATE_MODEL}.",
)
NO_ALL_REDUCE = Entry(
    "job.no_all_reduce",
    "no all-reduce was read: nothing here trains data-parallel yet, or too little of it was "
    "captured",
    cause="The trainers have not begun, or other ports carry their gradients.",
    remedy="Check with `flowcheck ports layout.toml` that the mirrored ports carry the gradients; "
    "wait one "
    "iteration.",
)
NO_BUCKET_PLAN = Entry(
    "job.no_bucket_plan",
    "the trainer's bucket plan was not seen yet",
    cause="It is sent at the second forward.",
    remedy="Wait one iteration; if this stays, state the model: `[model] factory`.",
)
_ONCE = (
    "It is sent once, so waiting does not bring it. Give another mirror's copy of the same traffic "
    "as well (`flowcheck replay FILE OTHER`, `[[source]]`), or a capture without loss. Else "
    "begin behind the start-up with the model stated (`[model] factory` and `loss`): "
    "[coming late](../stages/README.md)."
)
_DIFFERENT = (
    "It is sent once, and nothing tells which copy is right. Find the mirror that damages frames "
    "(`flowcheck doctor --live PORT`) and leave it out, or give one that damages none. Else "
    "begin behind the start-up with the model stated (`[model] factory` and `loss`): "
    "[coming late](../stages/README.md)."
)
COUNT_LOST = Entry(
    "job.count_lost",
    "a start-up message with the count of parameters was not captured: where what follows it "
    "begins is not sure",
    cause="The frame with that message of the start-up was lost on the way to the capture.",
    remedy=_ONCE,
)
SHAPES_LACK_BYTES = Entry(
    "job.shapes_lack_bytes",
    "bytes of the start-up message with the shapes of {parameters} parameters were not captured: "
    "their order and their places in the gradients are unknown",
    cause="Frames of that message of the start-up were lost on the way to the capture.",
    remedy=_ONCE,
)
SHAPES_COPIES_DIFFER = Entry(
    "job.shapes_copies_differ",
    "two copies of the start-up message with the shapes of {parameters} parameters differ: their "
    "order and their places in the gradients are unknown",
    cause="A mirror or a switch changed bytes of one copy of that message.",
    remedy=_DIFFERENT,
)
PLAN_LACKS_BYTES = Entry(
    "job.plan_lacks_bytes",
    "bytes of the message with the order of parameters in buckets were not captured: which "
    "gradients each bucket holds from the second iteration on is unknown",
    cause="Frames of that message were lost on the way to the capture.",
    remedy=_ONCE,
)
PLAN_COPIES_DIFFER = Entry(
    "job.plan_copies_differ",
    "two copies of the message with the order of parameters in buckets differ: which gradients "
    "each bucket holds from the second iteration on is unknown",
    cause="A mirror or a switch changed bytes of one copy of that message.",
    remedy=_DIFFERENT,
)
NO_WHOLE_ITERATION = Entry(
    "job.no_whole_iteration",
    "no whole iteration after the bucket plan was seen yet",
    cause="Each iteration so far has gaps, or the job pauses.",
    remedy="Wait one iteration; see where frames are lost (`flowcheck status{this_run!o}`).",
)
ONE_ITERATION = Entry(
    "job.one_iteration",
    "the capture ends in iteration 0 or behind it: the buckets of later iterations are announced "
    "only at the beginning of the next one (of the one after it under static_graph). What is "
    "shown is what was seen of {parameters} parameters of {elements:,} elements, of their "
    "initial weights and of the gradients of iteration 0",
    remedy="Capture one more step (two under static_graph), or the whole of it.",
)
ELEMENT_BYTES_OPEN = Entry(
    "job.element_bytes_open",
    "neither the initial weights nor a gradient bucket was seen whose size tells how many bytes an "
    "element has",
    remedy=f"Mirror from before the job's start on, whole frames, or state the model: "
    f"{STATE_MODEL}.",
)
UNKNOWN_ITERATION_0 = Entry(
    "job.unknown_iteration_0",
    "iteration 0 reduced buckets that this release of FlowCheck does not know",
    cause="The trainer's DistributedDataParallel makes its first buckets in another way.",
    remedy="State the model and bucket_cap_mb in `[model]`; report it with the release of torch.",
)
NO_COMPLETION = Entry(
    "job.no_completion",
    "point-to-point sends complete some all-reduces, and are missing for others",
    cause="Some sends that complete a collective are missing, or it is of another kind.",
    remedy="Mirror both directions of the port, and see where frames are lost (`flowcheck "
    "status{this_run!o}`).",
)
ADDED_STEP_OPEN = Entry(
    "job.added_step_open",
    "whether every all-reduce takes an additional ring step is unknown: only sizes say so",
    cause="Two releases of NCCL send alike here.",
    remedy="State NCCL's release: `nccl` in the job file.",
)
SEARCH_BROKEN_OFF_AFTER_LOSS = Entry(
    "job.search_broken_off_after_loss",
    "too much was lost to try every reading: the search was broken off, and what is reported may "
    "be incomplete",
    cause="Too many frames are missing to tell what was sent.",
    remedy="See where frames are lost (`flowcheck status{this_run!o}`, `flowcheck doctor`) and "
    "capture again.",
)
SEARCH_BROKEN_OFF = Entry(
    "job.search_broken_off",
    "nothing was lost, and no reading that was tried explains every send: the search was broken "
    "off before it had tried all of them, or the trainers do something that FlowCheck does not "
    "know",
    cause="The trainers do something that FlowCheck does not know, or too many readings fit.",
    remedy="State what is known: `[model] factory`, `nccl` and `nccl_log` in the job file.",
)
SENDS_UNREAD = Entry("job.sends_unread", "{sends} sends fit no collective and stay unread")
BEGINS_AMID_COLLECTIVE = Entry(
    "job.begins_amid_collective",
    "the capture begins amid a collective: {sends} sends before the first whole one stay unread",
    cause="Frames before the first whole collective are missing.",
    remedy="Nothing is to be done for later steps; for all of them start the capture before the "
    "trainers.",
)
STATE_A_MODEL = Entry(
    "job.state_a_model",
    "FlowCheck follows a trainer that sums gradients without DistributedDataParallel where its "
    f"model is stated: {STATE_MODEL}",
    cause="The sums on the wire do not tell the model.",
    remedy="State the model: `[model] factory`.",
)
NO_ORDER_FITS = Entry(
    "job.no_order_fits",
    "no order of the stated model's gradients ({parameters} parameters, {bytes:,} bytes), one by "
    "one or in buffers cut between parameters, makes the all-reduces seen: another model, "
    "gradients in another type, padding, an order of the trainer's own ([model] order states it), "
    "or tensors too small to be told apart",
    cause="The stated model is another one than the trainers'.",
    remedy="Correct `[model] factory` and `dtype`, or state `[model] order`.",
)
RELEASE_OPEN = Entry(
    "job.release_open",
    "no clear-to-send message was mirrored, and the sizes fit the partition of several "
    "NCCL releases",
    remedy="Mirror both directions of the port, or state NCCL's release: `nccl` in the job file.",
)
COPIES_DIFFER = Entry(
    "job.copies_differ",
    "two copies of every gradient's sum differ: no ring that fits the sizes is the trainers'",
    cause="Chunks belong to another collective than was tried, or something on the way changed "
    "bytes.",
    remedy="State NCCL's release (`nccl` in the job file) and mirror both directions of the port.",
)
WRITERS_OPEN = Entry(
    "job.writers_open",
    "where chunks of the gradients lie is unknown: {reason}",
    cause="The mirrored port does not show which rank sends what.",
    remedy="Mirror both directions of the port, or state `nccl_log` in the job file.",
)
TURNS_OPEN = Entry(
    "job.turns_open",
    "each connection uses {queue_pairs} queue pairs (NCCL_IB_QPS_PER_CONNECTION), and the order of "
    "their turns is unknown: their start was not seen",
    cause=_FROM_START,
    remedy="Start FlowCheck before the trainers, or set `NCCL_IB_QPS_PER_CONNECTION=1` there.",
)
FIRST_ITERATIONS_OPEN = Entry(
    "job.first_iterations_open",
    "sends were lost before the first iterations: where these begin is not sure",
    cause="The first iterations were seen with gaps.",
    remedy="See where frames are lost (`flowcheck status{this_run!o}`); later iterations are "
    "tried as well.",
)

# What was read.

STATED_PARAMETERS = Entry(
    "job.stated_parameters", "{parameters} parameters of {elements} elements: the stated model"
)
START_UP_PARAMETERS = Entry(
    "job.start_up_parameters", "{parameters} parameters of {elements} elements: start-up messages"
)
ELEMENT_BYTES_BY_WEIGHTS = Entry(
    "job.element_bytes_by_weights",
    "parameters of {sizes} bytes an element: size of the initial weights",
)
ELEMENT_BYTES_BY_MODEL = Entry(
    "job.element_bytes_by_model",
    "parameters of {sizes} bytes an element: the stated model, which fits the size of everything "
    "that was sent",
)
GRADIENT_ELEMENT_BYTES = Entry(
    "job.gradient_element_bytes", "gradients of {bytes} bytes an element: size of iteration 0"
)
BUCKETS = Entry("job.buckets", "{buckets} buckets: the bucket order and bucket sizes broadcasts")
REST_BY_PLAN = Entry(
    "job.rest_by_plan",
    "{came} of {buckets} buckets of the first iteration under that plan had come; the sizes of the "
    "others are the plan's, and lie between those of all-reduces that were seen",
)
BUCKETS_OF_BEFORE = Entry(
    "job.buckets_of_before", "{buckets} buckets: those of the previous incarnation"
)
BUCKETS_BY_MAPS = Entry(
    "job.buckets_by_maps",
    "{buckets} buckets: the all-reduces between two maps of used parameters, parameters in "
    "registration order, the last ones first",
)
BUCKETS_BY_CAPS = Entry(
    "job.buckets_by_caps",
    "buckets end where DDP's usual bucket_cap_mb ends them: their sizes on the wire allow {others} "
    "other ways",
)
BUCKETS_BY_NUMBERS = Entry(
    "job.buckets_by_numbers",
    "buckets end where numbers like the others end in their last lines: their sizes on the wire "
    "allow {others} other ways",
)
ONE_ITERATION_SEEN = Entry(
    "job.one_iteration_seen",
    "later iterations hold what iteration 0 held: nothing came behind it",
)
STATED_MODEL_REDUCES = Entry(
    "job.stated_model_reduces",
    "{all_reduces} all-reduces of the stated model's gradients, {layout}: their sizes, in every "
    "iteration",
)
EVERY_SEND_FITS = Entry(
    "job.every_send_fits",
    "{ranks} ranks, {channels} channels: every send has the size that these give",
)
NODES = Entry(
    "job.nodes",
    "{ranks} ranks on {nodes} nodes of {gpus} GPUs: data that comes in complete goes out {gpus} "
    "ring steps later",
)
FROZEN_AND_BUFFERS_PLACED = Entry(
    "job.frozen_and_buffers_placed",
    "{frozen} frozen parameters and {buffers} buffers stand in the start-up broadcasts where the "
    "stated model has them: every broadcast is as large as that gives",
)
FIND_UNUSED_PARAMETERS = Entry(
    "job.find_unused_parameters",
    "find_unused_parameters=True: no bucket plan is sent, and every iteration ends with the map of "
    "how many ranks used each parameter",
)
STATIC_GRAPH = Entry(
    "job.static_graph",
    "static_graph=True: the map before the first gradients says that {parameters} parameters are "
    "never used",
)
COMPLETED_POINT_TO_POINT = Entry(
    "job.completed_point_to_point",
    "point-to-point sends complete the all-reduces: they have exactly the size that is missing",
)
SCALARS_PLACED = Entry(
    "job.scalars_placed",
    "{scalars} parameters of one element each stand where {basis} leaves one place for them",
)
BUCKET_SIZES = Entry("job.bucket_sizes", "the size of every bucket")
RELEASE_STATED = Entry("job.release_stated", "NCCL's release is {release}, as the job file states")
RELEASE_CONTRADICTED = Entry(
    "job.release_contradicted",
    "the job file states NCCL's release {release}, but the frames are those of another release",
    remedy="Correct `nccl` in the job file.",
)

# What nothing seen could contradict.

BUCKETS_AS_BEFORE = Entry(
    "job.buckets_as_before",
    "the buckets of later iterations are those of the previous incarnation: this one had not sent "
    "its bucket plan when it was read",
)
LATER_ITERATIONS_OPEN = Entry(
    "job.later_iterations_open",
    "later iterations begin where they were read: the messages between them may be read otherwise",
)
BUFFERS_OF_TEMPLATE = Entry(
    "job.buffers_of_template",
    "the broadcasts of every forward are buffers, like BatchNorm's running statistics: the replica "
    "does not hold them, a restored state takes them from its template",
)
BUFFERS_OF_START = Entry(
    "job.buffers_of_start",
    "the broadcasts of every forward are buffers, like BatchNorm's running statistics: FlowCheck "
    "does not follow them, a restored state has those of the start-up or of its template",
)
BUFFERS_FOLLOWED = Entry(
    "job.buffers_followed",
    "by their sizes, the broadcasts of every forward are the stated model's buffers, like "
    "BatchNorm's running statistics: those of a step come with the next forward",
)
BUFFERS_NEVER_CHANGE = Entry(
    "job.buffers_never_change",
    "{buffers} of the stated model's buffers never change: the first {forwards} forwards did not "
    "change them",
)
COMPRESSED = Entry(
    "job.compressed",
    "gradients are reduced in {gradient_bytes} bytes an element, the parameters have "
    "{parameter_bytes}: torch's fp16_compress_hook or bf16_compress_hook does so, and divides "
    "before it reduces",
)
SAME_TYPE = Entry(
    "job.same_type",
    "gradients have the parameters' type: a communication hook that sends the other type of 2 "
    "bytes would not show",
)
WITHOUT_DDP = Entry(
    "job.without_ddp",
    "a trainer without DistributedDataParallel: its sums are gradients, it divides them by "
    "[optimizer] gradient_divisor (1 where it is not stated), and it applies a step each time that "
    "all were summed",
)
STATED_SHAPES = Entry(
    "job.stated_shapes",
    "names, shapes and types are taken from the stated model: the frames show only how many "
    "bytes a gradient has",
)
IN_STATED_ORDER = Entry(
    "job.in_stated_order",
    "gradients lie in the order that [model] states: other orders may have these sizes as well",
)
OTHER_ORDER_FITS = Entry(
    "job.other_order_fits",
    "gradients lie {layout}: {other} fits the sizes as well ([model] order states it)",
)
NOTHING_FROZEN = Entry(
    "job.nothing_frozen",
    "no parameters are frozen: up to {bytes:,} bytes of them would not show among the weights",
)
SHAPES_CUT = Entry(
    "job.shapes_cut",
    "parameters begin where they were read in the list of shapes: {others} other ways to cut it "
    "fit as well",
)
POINT_TO_POINT_CHUNK = Entry(
    "job.point_to_point_chunk", "the point-to-point sends hold the chunk that is missing"
)
BUCKET_BY_ORDER = Entry(
    "job.bucket_by_order",
    "which all-reduce is the bucket: another one as large was made, and only the order tells them "
    "apart",
)
ALL_ALIKE = Entry(
    "job.all_alike",
    "each all-reduce of a bucket's size is taken for a gradient: if the job also reduces something "
    "else of that size, the replica is wrong",
)
SCALARS_LIKELIEST = Entry(
    "job.scalars_likeliest",
    "where {scalars} of the parameters, of one element each, stand among the others: {ways} ways "
    "give every bucket its size, and the likeliest by {basis} is taken ([model] factory states it)",
)
SCALARS_FIRST = Entry(
    "job.scalars_first",
    "where {scalars} of the parameters, of one element each, stand among the others: {ways} ways "
    "give every bucket its size, and the first one is taken ([model] factory states it)",
)
SCALARS_OPEN = Entry(
    "job.scalars_open",
    "where {scalars} of the parameters, of one element each, stand among the others is unknown: "
    "{ways} ways give every bucket its size, and no way is much likelier than the next",
    remedy=f"State the model: {STATE_MODEL}.",
)

# How a trainer without DDP lays its gradients into all-reduces.

IN_REGISTRATION_ORDER = Entry("layout.registration_order", "in registration order")
REVERSED = Entry("layout.reversed", "from the last parameter to the first")
STATED_ORDER = Entry("layout.stated_order", "in the order that is stated")
EACH_ALONE = Entry("layout.each_alone", "every gradient by itself, {order}")
SOME_TOGETHER = Entry("layout.some_together", "some gradients of a few bytes with others, {order}")
EACH_ALONE_ANY_ORDER = Entry(
    "layout.each_alone_any_order", "every gradient by itself, in an order of its own"
)
