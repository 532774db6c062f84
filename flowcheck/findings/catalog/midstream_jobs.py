"""A job joined midstream: what tells where it lies, what that rests on, and what is open."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_FROM_START = "Only the start-up of the trainers tells this, and it was not seen."

# Evidence, and what it rests on.

JOINED = Entry(
    "late_join.joined",
    "joined midstream: {messages} messages on {connections} connections have the sizes of its "
    "iterations",
)
SAME_JOB = Entry(
    "late_join.same_job",
    "it is the job that was known before: its connections have the same addresses and queue pairs, "
    "and all its sizes since it was joined; no size tells which parameter lies where in a bucket",
)
AS_STATED = Entry(
    "late_join.as_stated",
    "parameters and the order of their gradients are those of the stated model",
)
PLACE_BY_TAGS = Entry(
    "late_join.place_by_tags",
    "the place of the mirrored ranks in the ring: sizes fit other places too, clear-to-send "
    "messages show this one",
)
TURNS_BY_TIMES = Entry(
    "late_join.turns_by_times",
    "the order of a connection's queue pairs is taken from the times when their messages began",
)
BEGIN_BY_PAUSES = Entry(
    "late_join.begin_by_pauses",
    "where an iteration begins is taken from the pauses of the trainer: sizes fit {places} places",
)
BEGIN_BETWEEN_OTHERS = Entry(
    "late_join.begin_between_others",
    "where an iteration begins: other collectives lie between some iterations",
)

# Why a job is not joined yet.

NO_MESSAGE = Entry(
    "late_join.no_message",
    "no message of the known connections was seen yet",
    cause="The connections that were known carry nothing at present.",
    remedy="Look at the trainers; if the job started again, its start-up is learned by itself.",
)
CONNECTION_SILENT = Entry(
    "late_join.connection_silent",
    "the known connection to QP {queue_pair} shows nothing yet: the mirror may not show it",
    remedy="Mirror the port that carries this connection.",
)
NO_WHOLE_ITERATION = Entry(
    "late_join.no_whole_iteration",
    "no whole iteration of the known job was seen yet behind the last gap",
    cause="Frames were lost, or the job pauses.",
    remedy="Wait one iteration; see where frames are lost (`flowcheck status{this_run!o}`).",
)
OTHER_SIZES = Entry(
    "late_join.other_sizes",
    "the sizes seen are not those of the known job: {messages} messages to QP {queue_pair} fit no "
    "iteration",
    cause="Another job, or the same one with other settings, uses these connections.",
    remedy="Start FlowCheck before the trainers start again, or correct `[model]`.",
)
BEGIN_OPEN = Entry(
    "late_join.begin_open",
    "where an iteration begins is unknown: sizes fit {places} places, and no pauses tell them "
    "apart",
    cause=_FROM_START,
    remedy="Wait for a pause of the job (evaluation, checkpoint), or start FlowCheck before the "
    "trainers.",
)
BEGIN_CONTRADICTORY = Entry(
    "late_join.begin_contradictory",
    "where an iteration begins is unknown: sizes fit several places that exclude each other, and "
    "no pauses tell them apart",
    cause=_FROM_START,
    remedy="Wait for a pause of the job (evaluation, checkpoint), or start FlowCheck before the "
    "trainers.",
)
TURNS_OPEN = Entry(
    "late_join.turns_open",
    "each connection uses several queue pairs (NCCL_IB_QPS_PER_CONNECTION), and amid a run the "
    "times of their messages do not tell whose turn it is",
    cause=_FROM_START,
    remedy="Start FlowCheck before the trainers, or set `NCCL_IB_QPS_PER_CONNECTION=1` there.",
)
NO_RINGS = Entry(
    "late_join.no_rings",
    "no connections of a ring were seen yet",
    cause="Too little has passed since FlowCheck started.",
    remedy="Wait one iteration.",
)
NO_RING_FITS = Entry(
    "late_join.no_ring_fits",
    "no ring of the connections seen sends what the stated model does in an iteration ([model] "
    "factory, loss, bucket_cap_mb): {detail}",
    remedy="Check `factory`, `loss` and `bucket_cap_mb` in the job file's `[model]`.",
)
NO_CLOSED_RING = Entry(
    "late_join.no_closed_ring",
    "no connections lead around a ring",
    cause="Connections of some nodes do not pass the mirrored ports.",
    remedy="`flowcheck ports layout.toml` chooses ports that show every chunk.",
)
NO_RING_OF_CONNECTIONS = Entry(
    "late_join.no_ring_of_connections",
    "no ring of {connections} connections does",
    cause="Connections of some nodes do not pass the mirrored ports.",
    remedy="`flowcheck ports layout.toml` chooses ports that show every chunk.",
)
PLACE_OPEN = Entry(
    "late_join.place_open",
    "the place of the mirrored ranks in the ring is unknown: sizes fit {places} places",
    cause="The mirrored ports show a part of the ring that fits several places.",
    remedy="Mirror both directions of the port, or state `nccl_log` in the job file.",
)
OTHER_NODES = Entry(
    "late_join.other_nodes",
    "sizes fit only a ring that hosts or the ranks named by clear-to-send messages contradict, as "
    "where nodes hold several GPUs: a start that is seen tells which of them writes, or NCCL's log "
    "(nccl_log in the job file)",
    remedy="State NCCL's log: `nccl_log` in the job file.",
)
IN_ONE_LINE = Entry(
    "late_join.in_one_line",
    "all sums of the stated model fit one line or group: whatever else ranks sum looks like them",
    cause="The model is too small to be told from other sums.",
    remedy="Start FlowCheck before the trainers.",
)
MIXED_AMID_RUN = Entry(
    "late_join.mixed_amid_run",
    "another ring sends as much as this one does between the same addresses, and amid a run "
    "nothing tells which of their connections belong together: FlowCheck follows them where it "
    "sees the start of both, or where a chain before this one followed them",
    cause="Two jobs of equal sizes run between the same hosts.",
    remedy="Start FlowCheck before the trainers, or mirror ports that only one of them uses.",
)
