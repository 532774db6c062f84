"""What the C core refuses when a parser or an extractor is opened, or gets the plan of a flow. The
names are rows of dpdk_ext/core/fc_error_table.h."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

MIXED = "The files are of two chains, or of stages that were started with different job files."
RESTART = "`flowcheck down{this_run!o}` removes the chain's memory; then start it with `flowcheck "
"up JOB.toml{this_run!o}`."
TORN = "Memory was changed by another program, or a file was copied while a chain ran."
OWN_FAULT = "A plan that FlowCheck made contradicts the job's other tables: a fault of FlowCheck."
REPORT = "Report it with the stage's log and the job's learned files of the run directory; the "
REPORT += "capture can be read again by `flowcheck replay FILE`."
SHORT = "This process got no more memory from the kernel."
FREE = (
    "Free memory on the machine (`free -m`), or lower `[ring]` slots; then start the chain again."
)

FLOW_TABLE_READ_ONLY = Entry(
    "extraction.flow_table_read_only",
    "{subject}: the flow table was opened read only, and a parser writes it",
    cause="The table was opened to be looked at.",
    remedy=REPORT,
)
FLOW_TABLE_TOO_SMALL = Entry(
    "extraction.flow_table_too_small",
    "{subject}: {messages:,} message records for {slots:,} slots: twice as many are needed",
    cause=MIXED,
    remedy=RESTART,
)
FLOW_TABLE_JOURNAL_TORN = Entry(
    "extraction.flow_table_journal_torn",
    "{subject}: the undo journal of the flow table is torn",
    cause=TORN,
    remedy=RESTART,
)
PARSER_WITHOUT_MEMORY = Entry(
    "extraction.parser_without_memory",
    "{subject}: no memory for the parser's own tables",
    cause=SHORT,
    remedy=FREE,
)
STAGING_OF_ANOTHER_TABLE = Entry(
    "extraction.staging_of_another_table",
    "{subject}: staging for {staging_messages:,} message records, the flow table has {messages:,}",
    cause=MIXED,
    remedy=RESTART,
)
EXTRACTOR_WITHOUT_MEMORY = Entry(
    "extraction.extractor_without_memory",
    "{subject}: no memory for the extractor",
    cause=SHORT,
    remedy=FREE,
)
JOURNAL_WITHOUT_SHARD = Entry(
    "extraction.journal_without_shard",
    "{subject}: the extractor's journal has entries of a shard, and the shard was not opened "
    "with it",
    cause="The staging file is of a job that is followed already.",
    remedy=RESTART,
)
STAGING_JOURNAL_TORN = Entry(
    "extraction.staging_journal_torn",
    "{subject}: the extractor's journal is torn",
    cause=TORN,
    remedy=RESTART,
)
STAGED_BLOCKS_OVERLAP = Entry(
    "extraction.staged_blocks_overlap",
    "{subject}: the blocks of staged messages overlap",
    cause=TORN,
    remedy=RESTART,
)
PLAN_SEGMENT_MISPLACED = Entry(
    "extraction.plan_segment_misplaced",
    "{subject}: segment {segment} of a send lies outside the gradient, between elements or out of "
    "order",
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_SEGMENTS_TOO_LONG = Entry(
    "extraction.plan_segments_too_long",
    "{subject}: segments extend to byte {end:,} of a message of {bytes:,} bytes",
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_SEGMENTS_MISSING = Entry(
    "extraction.plan_segments_missing",
    "{subject}: a send refers to segments that do not exist",
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_WITHOUT_SHARD = Entry(
    "extraction.plan_without_shard",
    "{subject}: a plan that places bytes needs a shard",
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_SENDS_MISSING = Entry(
    "extraction.plan_sends_missing",
    "{subject}: the plan refers to sends that do not exist",
    also=("flow",),
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_TURN_REFUSED = Entry(
    "extraction.plan_turn_refused",
    "{subject}: the plan has turn {turn} of {turns}",
    also=("flow",),
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_SECOND_STEP_REFUSED = Entry(
    "extraction.plan_second_step_refused",
    "{subject}: the plan has its second step after its first sends",
    also=("flow",),
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_FRONTIER_MISSING = Entry(
    "extraction.plan_frontier_missing",
    "{subject}: the plan refers to a frontier that does not exist",
    also=("flow",),
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_WITHOUT_ROOM = Entry(
    "extraction.plan_without_room",
    "{subject}: no room for {sends:,} sends of {segments:,} segments in the staging file",
    cause="The job has more messages in a step than the tables of the staging file hold.",
    remedy="Raise `[staging] size_bytes` in the job file. " + RESTART,
)
PLAN_STATE_REFUSED = Entry(
    "extraction.plan_state_refused",
    "{subject}: the plan of flow {flow} cannot be set to state {state}",
    cause=OWN_FAULT,
    remedy=REPORT,
)
PLAN_NOT_SUSPENDED = Entry(
    "extraction.plan_not_suspended",
    "{subject}: flow {flow} has no suspended plan",
    cause=OWN_FAULT,
    remedy=REPORT,
)
SKIP_REVERSED = Entry(
    "extraction.skip_reversed",
    "{subject}: a skip of flow {flow} ends before it begins",
    cause=OWN_FAULT,
    remedy=REPORT,
)
SKIP_WITHOUT_PLAN = Entry(
    "extraction.skip_without_plan",
    "{subject}: flow {flow} has no plan that could skip messages",
    cause=OWN_FAULT,
    remedy=REPORT,
)
SKIP_BEFORE_LAST = Entry(
    "extraction.skip_before_last",
    "{subject}: flow {flow}: a skip at message {message}, before the last one",
    cause=OWN_FAULT,
    remedy=REPORT,
)
FRONTIER_NOT_BEFORE = Entry(
    "extraction.frontier_not_before",
    "{subject}: flow {flow} has no frontier before message {message}",
    cause=OWN_FAULT,
    remedy=REPORT,
)
