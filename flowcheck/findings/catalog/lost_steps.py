"""Packets and steps that are missing, late or doubtful, and what a step was read by."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_FRAMES_LOST = "Frames of the step were lost on the way to this machine or in it."
_WHERE_LOST = (
    "`flowcheck status{this_run!o}` shows where frames are lost; `flowcheck doctor` and, with the "
    "options of its session, `flowcheck switch check --help` find the cause. `flowcheck base FILE "
    "--then LATER{this_run!o}` makes a replica that stopped go on."
)

# Frames and packets.

FRAMES_DROPPED = Entry(
    "loss.frames_dropped",
    "frames reached this machine and found no slot: {counters}",
    cause="An event, and `dropped` in `status`: the capture did not take them in time; "
    "`interface_missed_frames` is the kernel's own count of what its ring for our socket had no "
    "room for.",
    remedy="Cores of its own for capture and parsers, 2 MiB pages, a larger `[ring]`; "
    "`flowcheck doctor`.",
    section="arrival",
)
FRAMES_OF_COUNTER = Entry("loss.frames_of_counter", "{counter} {frames:,}")
FLOW_TABLE_FULL = Entry(
    "loss.flow_table_full",
    "the table of {flows:,} flows is full: {packets:,} packets of queue pairs that came later "
    "found no record and are not followed, so a job that begins now is not learned",
    cause="An event, in `status`, and `flow_table_full_packets` of the parser: jobs that restart "
    "often, or somebody who makes up queue pairs, took every record. Flows that have one go on; a "
    "new connection's steps cannot be rebuilt.",
    remedy="See who else sends through the mirrored ports and leave them out of the mirror; "
    "`flowcheck down{this_run!o}` and `flowcheck up JOB.toml{this_run!o}` begin an empty table.",
    section="arrival",
)
PACKETS_MISSING = Entry(
    "loss.packets_missing",
    "their sequence numbers show that they were sent, and no mirror brought them",
    cause=_FRAMES_LOST,
    remedy=_WHERE_LOST,
)
PACKETS_CAME_LATE = Entry("loss.packets_came_late", "they came late")
ONLY_DUPLICATES = Entry(
    "loss.only_duplicates",
    "no data lost: the step was applied, and these packets held only duplicates",
)
_OTHER_BYTES = (
    "Two mirror ports, or a frame sent twice, brought other bytes: something on the way changed "
    "them. Both values are in `differing-STEP.json` of the run directory, of the newest eight such "
    "steps."
)
_DAMAGED_PORT = (
    "See `icrc_bad` in `flowcheck status{this_run!o}`: the switch or a cable damages frames. Leave "
    "that port out, then give `flowcheck base FILE{this_run!o}`."
)
COPY_DIFFERED_LATE = Entry(
    "loss.copy_differed_late",
    "a copy that differs came after the step was applied",
    cause=_OTHER_BYTES,
    remedy="Audit the replica: `flowcheck audit FILE{this_run!o}` with the trainer's next "
    "checkpoint.",
)
TAINTED_LATE = Entry(
    "loss.tainted_late",
    "step {step}: a copy that differs within {bytes:,} bytes came after the step was applied: "
    "{elements:,} elements are tainted since step {step}, and were called exact from step {step} "
    "to {to}",
    cause=_OTHER_BYTES,
    remedy="`flowcheck base FILE{this_run!o}` with a checkpoint that the trainer writes from this "
    "step on makes all elements exact again. Do not resume from a checkpoint that was saved of "
    "these steps before.",
    section="loss",
)
CALLED_EXACT_BEFORE = Entry(
    "loss.called_exact_before",
    "NOT proved exact: it was saved before copies of step {step} turned out to differ within "
    "{bytes:,} bytes; {elements:,} elements of steps {step} to {to} rest on them",
    section="replica",
    cause=_OTHER_BYTES,
    remedy="Take a step before these, or one that the run holds by now: it names the elements.",
)
BYTES_DIFFER = Entry(
    "loss.bytes_differ",
    "two copies differ within {bytes:,} bytes, first in {parameter}, elements {start:,} to "
    "{stop:,}; both values of {kept:,} of {ranges:,} ranges are in {file}",
    cause=_OTHER_BYTES,
    remedy=_DAMAGED_PORT,
    section="loss",
)
STAGING_OVERRUN = Entry(
    "loss.staging_overrun",
    "staging ran full before the job was learned: {packets:,} packets found no room in {bytes:,} "
    "bytes and were dropped, none of them by the mirror",
    remedy="Raise `[staging] size_bytes` (of each ring) in the job file; `flowcheck plan JOB.toml` "
    "names the size.",
)

# Why a step is lost.

COPIES_DIFFER = Entry(
    "loss.copies_differ",
    "two copies differ within {bytes} bytes of it",
    cause="Two mirror ports, or a frame sent twice, brought other bytes: something on the way "
    "changed them.",
    remedy="See `icrc_bad` in `flowcheck status{this_run!o}`: the switch or a cable damages "
    "frames. Leave that port out, then give `flowcheck base FILE --then LATER{this_run!o}`.",
)
STAGING_FULL = Entry(
    "loss.staging_full",
    "staging is full and the step is not complete",
    cause="The step is larger than the room for it, or a stage before it is slow.",
    remedy="Raise `[staging] size_bytes`; `flowcheck plan job.toml` names the size.",
)
CAPTURE_ENDED = Entry(
    "loss.capture_ended",
    "the capture ended before all of it was seen",
    cause="The capture stopped within the step.",
    remedy="Capture until the job has ended, or give up that step.",
)
FLOWS_WENT_ON = Entry(
    "loss.flows_went_on",
    "every flow went on without it",
    cause=_FRAMES_LOST,
    remedy=_WHERE_LOST,
)
FLOWS_WENT_ON_AFTER_OVERRUN = Entry(
    "loss.flows_went_on_after_overrun",
    "{overrun}; every flow went on",
    cause=_FRAMES_LOST,
    remedy=_WHERE_LOST,
)
SILENT_MIRROR_POINTS = Entry(
    "loss.silent_mirror_points",
    "{reason}; {silent} of {all} mirror points, silent for {seconds:g} s, are not waited for",
    cause="Nothing came from one of several mirror ports while the others went on.",
    remedy="Look at that port's session and link.",
    section="loss",
)
NEW_MESSAGES = Entry(
    "loss.new_messages",
    "step {step} has messages that the first iteration did not have",
    cause="The trainers sent something in this step that they had not sent before.",
    remedy="Nothing was lost. If it happens in every step, state the model: `[model] factory`.",
)
STEP_REFUSED = Entry("loss.step_refused", "step {step}: {reason}")
STEP_UNEXPLAINED = Entry(
    "loss.step_unexplained",
    "step {step} does not lie where the plan has it, and no collectives that could be left out "
    "explain the messages before it: this deviates from the plan, nothing was lost",
    cause="The trainers sent something in this step that they had not sent before.",
    remedy="`flowcheck base FILE --then LATER{this_run!o}` with the trainer's next two "
    "checkpoints; report it if it comes again.",
)
MODEL_AVERAGING = Entry(
    "loss.model_averaging",
    "what was reduced holds the parameters, not their gradient (cosine {cosine:.3f}): the trainer "
    "averages models (post_localSGD_hook, local SGD), and what its ranks do between two averages "
    "is not on the wire",
    cause="The trainer averages models between its own steps (local SGD).",
    remedy="FlowCheck does not follow such a job.",
    section="replica",
)
UNIT_CHANGED = Entry(
    "loss.unit_changed",
    "what was gathered in place of unit {unit} is nothing like it was a step before (it changed by "
    "{change:.2f} of its length): the trainer gathers in another order than before, or gathers "
    "something else",
    cause="The trainer gathers in another order than before.",
    remedy="State `[sharded] factory`; if the order changes in each step, FlowCheck does not "
    "follow this job.",
)
NO_USED_MAP = Entry(
    "loss.no_used_map",
    "the map of used parameters does not hold numbers of ranks: other bytes lie in its place",
    cause="The trainers sent something else in the place of the map.",
    remedy="Compare find_unused_parameters in `[model]` with the script.",
)
UNUSED_NOT_ZERO = Entry(
    "loss.unused_not_zero",
    "no rank used parameter {parameter}, and its gradient is not zero: the trainer does not set "
    "gradients to None before a backward (zero_grad() does), and the wire does not tell which "
    "gradient the optimizer sees",
    cause="The trainer keeps gradients from one step to the next.",
    remedy="Call `zero_grad(set_to_none=True)` before each backward.",
)
UNUSED_IN_ONE_BACKWARD = Entry(
    "loss.unused_in_one_backward",
    "no rank used parameter {parameter} in one of several synchronised backwards of a step "
    "([optimizer] synced_backwards): its gradient may be of an earlier backward",
    remedy="Accumulate gradients under no_sync.",
)
FIRST_MISSING_RANGES = Entry(
    "loss.first_missing_ranges", "{reason}; the first {named} of {ranges} missing ranges"
)
STEP_LOST = Entry(
    "loss.step_lost",
    "step {step} was lost: {reason}",
    cause=_FRAMES_LOST,
    remedy=_WHERE_LOST,
)
STEP_WAS_LOST = Entry(
    "loss.step_was_lost",
    "step {step} was lost",
    cause=_FRAMES_LOST,
    remedy=_WHERE_LOST,
)
NOT_GATHERED = Entry(
    "loss.not_gathered",
    "step {step} was not gathered whole when the capture ended",
    cause=_FRAMES_LOST,
    remedy=_WHERE_LOST,
)

# What an operator is told of it.

STEP_SHORT = Entry(
    "loss.step_short",
    "step {step}: {bytes:,} bytes of it never came, and units with missing bytes keep their "
    "parameters of the step before: {reason}",
)
LOST_AS_PLANNED = Entry(
    "assumed.lost_as_planned",
    "messages that were lost whole were those that the job sends there in every iteration: "
    "sizes of what came behind contradict any other, and nothing else could",
)
STEP_TAINTED = Entry(
    "loss.step_tainted",
    "step {step}: {bytes:,} bytes of it never came or differ between two copies; it is applied "
    "without them, and the elements they are of are tainted from here on, all others exact: "
    "{reason}",
    cause=_FRAMES_LOST,
    remedy="`flowcheck base FILE{this_run!o}` with a checkpoint that the trainer writes from this "
    "step on makes all elements exact again; until then `flowcheck restore --format torch --out "
    "restored.pt{this_run!o}` gives the newest exact step. `flowcheck doctor` finds where "
    "frames are lost.",
)
STEP_AWAITS_CHECKPOINT = Entry(
    "loss.step_awaits_checkpoint",
    "step {step}: {bytes:,} bytes of it never came or differ between two copies, and by this "
    "optimizer's rule they may matter to every element: the replica stays before it, and later "
    "gradients are logged until it is given the trainer's checkpoint of step {step} or a later "
    "one: {reason}",
    cause=_FRAMES_LOST,
    remedy="`flowcheck base FILE{this_run!o}` with such a checkpoint; `[audit] folder` gives it by "
    "itself as the trainer writes it. `flowcheck doctor` finds where frames are lost.",
)
STEP_LOGGED_LACKING = Entry(
    "loss.step_logged_lacking",
    "step {step} since the job was joined: {bytes:,} bytes of it never came or differ between two "
    "copies; it is logged without them, and on a base of an earlier step the elements they are of "
    "are tainted: {reason}",
    cause=_FRAMES_LOST,
    remedy="`flowcheck base FILE --then LATER{this_run!o}` with two checkpoints that the trainer "
    "writes from this step on leaves nothing of it tainted. `flowcheck doctor` finds where frames "
    "are lost.",
)
LOG_BEGINS_BEHIND = Entry(
    "loss.log_begins_behind",
    "step {step} since the job was joined: {bytes:,} bytes of it never came or differ between two "
    "copies, and by this optimizer's rule they may matter to every element: the gradients logged "
    "before are of no use, and logging goes on behind it: {reason}",
    cause=_FRAMES_LOST,
    remedy="`flowcheck base FILE --then LATER{this_run!o}` with two checkpoints that the trainer "
    "writes from this step on. `flowcheck doctor` finds where frames are lost.",
)
ONLY_ACCUMULATED = Entry(
    "loss.only_accumulated",
    "{bytes:,} bytes of an all-reduce before step {step} never came, and nothing is lost: the "
    "trainer only accumulates there, and the step's own all-reduce has these gradients as well "
    "({reason})",
)
STEP_GIVEN_UP_AT_END = Entry(
    "loss.step_given_up_at_end",
    "step {step} was in flight when its job ended, and is given up",
    cause="The job ended within the step, as the trainers were killed.",
    remedy="Nothing is to be done: the trainers did not finish it either.",
)
STEP_LOST_JOINS_AGAIN = Entry(
    "loss.step_lost_joins_again",
    "step {step} was not seen whole: the replica stays before it; gradients of later steps are "
    "kept as soon as a whole one is seen again, and wait for a base",
    cause="A part of a step did not come, of a job that was joined midstream.",
    remedy="`flowcheck base FILE --then LATER{this_run!o}` with the trainer's next two "
    "checkpoints.",
    section="loss",
)
REPLICA_GOES_ON = Entry(
    "loss.replica_goes_on", "the replica goes on behind step {step}, which was lost"
)
MESSAGES_LOST = Entry(
    "loss.messages_lost",
    "messages {first} to {last} to QP {queue_pair} were lost; those behind them fit only behind as "
    "many planned messages, so the lost ones were as planned",
)
MESSAGES_DROPPED = Entry(
    "loss.messages_dropped",
    "messages {first} to {last} to QP {queue_pair} are missing ({overrun}); those behind them fit "
    "only behind as many planned messages, so the missing ones were as planned",
)

# What steps rest on.

PLACE_OF_STEP = Entry("loss.place_of_step", "where a step lies: {reason}")
PLACE_OF_STEP_ASSUMED = Entry(
    "loss.place_of_step_assumed", "assumed where step {step} lies: {reason}"
)
PAUSES_UNBROKEN = Entry(
    "loss.pauses_unbroken",
    "that no mirror was blind, in a pause of the job, for exactly 16,777,216 packets of a queue "
    "pair or a multiple of them",
    until_audit=True,
)
APPLIED_IN_DOUBT = Entry(
    "loss.applied_in_doubt",
    "step {step} was applied, and then a copy came that differs within {bytes} bytes of it: which "
    "of the two is right",
    until_audit=True,
)
