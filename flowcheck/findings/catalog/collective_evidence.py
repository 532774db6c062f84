"""Collectives: what tells their sizes, kinds and beginnings, what is uncertain about them, and
those that lie between the steps of a job and belong to no step."""

from flowcheck.findings.finding import Entry

LOSS = "Sends were lost by the mirror, or lie before the capture."

# Doubts: such a collective is never complete.
SIZE_BESIDE_UNREAD = Entry(
    "collectives.size_beside_unread_sends",
    "its size is uncertain: sends on other connections fit no collective and may be a part of it",
)
SIZE_BESIDE_LOST_RING = Entry(
    "collectives.size_beside_lost_connections",
    "its size is uncertain: other connections lost sends and may have carried a part of it",
    cause=LOSS,
)
SIZE_BESIDE_LOST_CHANNEL = Entry(
    "collectives.size_beside_lost_channel",
    "its size is uncertain: a connection of its ring lost sends and may have carried a part of it",
    cause=LOSS,
)
SIZE_OF_LOST_SENDS = Entry(
    "collectives.size_of_lost_sends",
    "its size is uncertain: sends of it were lost, and other sizes fit the rest as well",
    cause=LOSS,
)
SIZE_CUT_OFF = Entry(
    "collectives.size_cut_off",
    "its size is uncertain: the capture ends amid it, and {other_sizes_bytes} bytes fit as well",
    remedy="Capture it whole.",
)
CHUNK_PLACES_OPEN = Entry(
    "collectives.chunk_places_open",
    "its size is uncertain: another size has as many groups of lines, and its chunks at other "
    "places",
)
KIND_OF_LOST_SENDS = Entry(
    "collectives.kind_of_lost_sends",
    "it is read as an all_reduce: the sends that could confirm that were lost",
    cause=LOSS,
)
KIND_FROM_SIZES_WITH_LOSS = Entry(
    "collectives.kind_from_sizes_with_loss",
    "it is read as {kind} from sizes alone, while other sends are missing",
    cause=LOSS,
)
READINGS_UNTRIED = Entry(
    "collectives.readings_untried",
    "it is assumed that no other reading fits: the search stopped before it had tried all of them",
    cause="So many sends were lost that trying every reading would take too long.",
)
BEGINNING_UNTOLD = Entry(
    "collectives.beginning_untold",
    "where it begins is uncertain: sends before it were not seen, and nothing else shows it",
    cause=LOSS,
)
BEGINNING_SHIFTED = Entry(
    "collectives.beginning_shifted",
    "where it begins is uncertain: sizes fit a beginning at another send as well",
    cause=LOSS,
)
RELEASE_OPEN = Entry(
    "collectives.release_open",
    "the NCCL release is uncertain: another one cuts tensors into the same sizes at other places",
    remedy='State the release in the job file, as `nccl = "2.21.5"`.',
)
NO_ADDED_STEP = Entry(
    "collectives.no_added_ring_step",
    "the trainer's NCCL is assumed to add no ring step: what follows each all-reduce only has the "
    "size of one",
)

# Assumptions: no byte seen could contradict them.
END_OPEN = Entry(
    "collectives.end_open",
    "where the tensor ends inside its last line is unknown: {least:,} to {most:,} bytes fit",
)
END_BY_CONTENT = Entry(
    "collectives.end_by_content",
    "the tensor's end is guessed: LL sends lines of 8 bytes, and those of the last line look like "
    "data, not like padding",
)
END_BY_COPIES = Entry(
    "collectives.end_by_copies",
    "its last lines end where two copies of what they carry begin to differ",
)
END_BY_NUMBERS = Entry(
    "collectives.end_by_numbers",
    "its last lines end where what they carry stops to look like its numbers",
)
SIZE_BY_TRAINER = Entry(
    "collectives.size_by_trainer",
    "its size is assumed: DDP's start-up gives it one that fits, and no job was learned that bears "
    "it out",
)
SIZE_AMID_UNREAD = Entry(
    "collectives.size_amid_unread_sends",
    "its size is assumed: sends of the same time fit no collective and may be parts of it",
)
ONE_ALL_REDUCE = Entry(
    "collectives.one_all_reduce",
    "it is one all_reduce: two reduce_scatters of two ranks have the same sizes",
)
KIND_FROM_SIZES = Entry("collectives.kind_from_sizes", "it is read as {kind} from sizes alone")
SCATTERED_NOT_GATHERED = Entry(
    "collectives.reduce_scatter_not_repeated",
    "it is a reduce_scatter: this trainer gathers everything twice, and this was sent once",
)
FEWEST_RANKS = Entry(
    "collectives.fewest_ranks",
    "there are {ranks} ranks: the smallest number that the hosts seen allow",
)
OTHER_RANKS = Entry(
    "collectives.other_ranks_fit", "there are {ranks} ranks: {others} ranks fit the sizes as well"
)
RING_STEPS = Entry(
    "collectives.ring_steps",
    "the number of ring steps that the trainer's NCCL makes is assumed: another one fits the "
    "sizes as well",
)
WIDER_ELEMENTS = Entry(
    "collectives.wider_elements",
    "the width of its elements is assumed: elements half as wide would have the same sizes on the "
    "wire",
)
COPIES_DIFFER = Entry(
    "collectives.copies_differ",
    "{bytes:,} of its bytes differ between two copies and are left out: frames were damaged, or "
    "sends of other collectives were taken for its own",
)
BEGINS_AFTER_PAUSE = Entry(
    "collectives.begins_after_pause",
    "it begins behind one of the longest pauses of all connections",
)
AS_EACH_TIME = Entry(
    "collectives.as_each_time",
    "it is the collective that came at this place each time: its first sends came before the "
    "capture",
)

# The initial weights.
WEIGHTS_IN_ONE_LINE = Entry(
    "collectives.weights_in_one_line",
    "the initial weights have {bytes} bytes, no more than any number that ranks send each other: "
    "nothing shows that they are a model's",
    cause="What was sent is too small to tell a model.",
    remedy="State the model: `[model] factory` in the job file.",
)
WEIGHTS_END_OPEN = Entry(
    "collectives.weights_end_open",
    "where the initial weights end is unknown: other shapes, or elements of another size, fit the "
    "start-up as well",
    cause="The start-up alone fits several models.",
    remedy="State the model: `[model] factory` in the job file.",
)
WEIGHTS_SPREAD_OPEN = Entry(
    "collectives.weights_spread_open",
    "how the initial weights are spread over the channels is unknown: they may have been sent with "
    "buffers behind them, and more bytes are cut elsewhere and have as many lines",
    cause="The start-up alone fits several places of the weights.",
    remedy="State the model: `[model] factory` in the job file.",
)

# What tells where parameters of one number stand among the others.
STANDS_BY_MODEL = Entry("collectives.scalars_by_stated_model", "the stated model")
STANDS_BY_BEFORE = Entry("collectives.scalars_by_incarnation_before", "the previous incarnation")
STANDS_BY_NUMBERS = Entry(
    "collectives.scalars_by_numbers",
    "how alike the first weights and gradients of each parameter are",
)

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
