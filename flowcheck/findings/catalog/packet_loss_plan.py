"""`flowcheck plan-loss`: what its figures rest on, and what it refuses."""

from __future__ import annotations

from flowcheck.findings.catalog.general_errors import CORRECT_VALUE
from flowcheck.findings.finding import Entry

PROBABILITY = Entry(
    "plan_loss.probability",
    "must be a probability from 0 to {most}",
    remedy=CORRECT_VALUE,
)
SHARE = Entry(
    "plan_loss.share",
    "must be a probability from 0 to 1",
    remedy=CORRECT_VALUE,
)
TOO_MUCH_TO_SIMULATE = Entry(
    "plan_loss.too_much_to_simulate",
    "more losses would be drawn than fit into memory",
    also=("most",),
    remedy="Simulate {most} steps or fewer.",
)
NO_GRADIENTS_SAID = Entry(
    "plan_loss.no_gradients_said",
    "neither a model nor the size of its gradients is given",
    remedy="Give MODEL, or `--gradient-bytes N`.",
)
GRADIENTS_TWICE = Entry(
    "plan_loss.gradients_twice",
    "the model tells the size of its gradients",
    remedy="Give one of them.",
)
COPIES_OR_LINKS = Entry(
    "plan_loss.copies_or_links",
    "the number of mirrored links tells the copies of each chunk",
    remedy="Give one of them.",
)
NEEDS_OPTION = Entry(
    "plan_loss.needs_option",
    "needs {option} beside it",
    remedy="Give both, or leave both out.",
)
NEEDED_BY = Entry(
    "plan_loss.needed_by",
    "{option} needs it",
    remedy="Give both, or leave both out.",
)
LINKS_OF_RING = Entry(
    "plan_loss.links_of_ring",
    "must be 2 at least and {most} at most: a ring of {ranks} ranks has {ranks} links",
    remedy=CORRECT_VALUE,
)
FACTORY_FOR_LOSS = Entry(
    "plan_loss.factory_for_loss",
    "the job file states no model and optimizer, which tell the size of the gradients",
    remedy="State `factory` in `[model]` and an `[optimizer]`, or give `--gradient-bytes N`.",
)

# What the figures rest on.

COPIES_INDEPENDENT = Entry(
    "plan_loss.copies_independent",
    "copies of a packet are lost independently of each other, as they pass at different times or "
    "on different ways; a mirror port or a session that is down is no packet loss, and not in "
    "these figures",
)
PACKETS_INDEPENDENT = Entry(
    "plan_loss.packets_independent",
    "packets are lost independently of each other; a mirror port drops in bursts",
    remedy="Give their mean length with `--burst-packets`.",
)
PARTIAL_SUMS_FREE = Entry(
    "plan_loss.partial_sums_free",
    "a lost packet with partial sums, of the first half of an all-reduce, costs nothing: the "
    "replica takes finished sums alone, and later messages are placed by their sequence numbers",
)
STOPS_AT_LOSS = Entry(
    "plan_loss.stops_at_loss",
    "the optimizer's rule needs all gradients at once, so that a lost step stops the replica until "
    "it is given a checkpoint; by a rule that steps each element by itself it goes on, with the "
    "lost elements tainted",
    remedy="`--heal` plans that.",
)
WAITS_AT_LOSS = Entry(
    "plan_loss.waits_at_loss",
    "the trainer clips by a norm of all gradients: a lost step stops the replica until it is given "
    "a checkpoint, and nothing is tainted",
)
ONE_ALL_REDUCE = Entry(
    "plan_loss.one_all_reduce",
    "gradients are all-reduced as one tensor; the buckets of a model make some more packets",
    remedy="Give MODEL for its buckets.",
)
FOREIGN_LOSS = Entry(
    "plan_loss.foreign_loss",
    "the mirror queue loses {loss:g} of the copies, as the published prototype reports of its "
    "mirror link: another switch, another load",
    remedy="Measure yours (`flowcheck status{this_run!o}` counts packets that no mirror brought), "
    "and give it with `--switch-loss`.",
)
TAINT_UNTIL_HEALED = Entry(
    "plan_loss.taint_until_healed",
    "the optimizer steps each element by itself, and each checkpoint file of the trainer is taken "
    "as it appears",
    remedy="`[audit] folder` takes them; `[hook]` asks the trainer before.",
)
HEALED_WHOLE = Entry(
    "plan_loss.healed_whole",
    "a checkpoint file of the trainer makes all elements exact again, and the gradients of the "
    "steps since are still there",
)
HEALED_BY_HOOK = Entry(
    "plan_loss.healed_by_hook",
    "the optimizer steps each element by itself, and the hook answers each request with exact "
    "values",
    remedy="`[hook]` asks the trainer; `--hook-success` with `--checkpoint-every` plans answers "
    "that fail.",
)
SEVERAL_RINGS = Entry(
    "plan_loss.several_rings",
    "{rings} rings, each with mirrors of its own; a step needs all of them",
)
