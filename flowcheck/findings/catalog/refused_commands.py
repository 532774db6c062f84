"""Options, and files of the job, that a command does not take."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

FOLDER_REMOVED = Entry("command.folder_removed", "the folder was removed: cd to one that exists")
FILE_ERROR = Entry(
    "command.file_error",
    "{path}: {error}",
    also=("errno",),
    cause="The system refused to read or write there.",
    remedy="Check the path, that its folder exists and this user may use it (`ls -ld`), and the "
    "limits of this user (`ulimit -a`).",
)
"""errno: its name, ENOENT."""
NO_ROOM_AT = Entry(
    "command.no_room_at",
    "{path}: no room left on the file system at {mount} ({error}): {free_mib:,} MiB of "
    "{total_mib:,} MiB are free there; remove what is not needed, or name a folder on another one",
    section="processes",
    cause="The disk is full, or the user's quota of it. What was being written is gone; what was "
    "there before is as it was.",
    remedy="Free space there (`df`), then run the command again.",
)
NO_INODE_AT = Entry(
    "command.no_inode_at",
    "{path}: no room left on the file system at {mount}: it has no inode for another file (df -i), "
    "with {free_mib:,} MiB free; remove files that are not needed there, or name a folder on "
    "another one",
)
NO_ROOM = Entry(
    "command.no_room",
    "no room left on the file system of the run directory, of the checkpoints or of shared memory: "
    "df shows which one is full",
)
NOT_A_PICTURE = Entry(
    "command.not_a_picture", "is a file that is not a picture of FlowCheck's: name another file"
)
CANNOT_LISTEN = Entry(
    "command.cannot_listen", "cannot listen there ({error}): state another address or port"
)
NOT_A_MESSAGE = Entry(
    "command.not_a_message",
    "not a FlowCheck message: {frame} ({error})",
    cause="Another program, or another release of FlowCheck, sends to this chain's sockets.",
    remedy="Stop it; one release must start all stages.",
)
OPTIMIZER_STATED = Entry(
    "command.optimizer_stated", "the job file states the optimizer: leave --optimizer and --lr out"
)
REPLAY_SOURCE = Entry("command.replay_source", "must be auto, dpdk or file")
COMMA_IN_PATH = Entry("command.comma_in_path", "DPDK takes no path with a comma: use --source file")
NO_EARLIER_RUN = Entry(
    "command.no_earlier_run",
    "no earlier run is recorded there: its records are kept when the next run starts",
    cause="This is the first run in that folder.",
    remedy="`flowcheck status{this_run!o}` without `--previous` shows it.",
)
NOTHING_TO_DRAW = Entry(
    "command.nothing_to_draw",
    "the job is not learned yet: there is nothing to draw",
    cause="The chain has not learned a job.",
    remedy="`flowcheck status{this_run!o}` shows what learning waits for; draw it then.",
)
LATER_CHECKPOINT_OR_JOB = Entry(
    "command.later_checkpoint_or_job",
    "with several jobs, give a later checkpoint (--then FILE), which shows the job it is of; or "
    "name the job: --run {run!q}/jobs/N",
)

# The model of the job file.

LEARNED_MISSING = Entry(
    "command.learned_missing",
    "no such file: state job.json in learned/ of a run",
    cause="The path is wrong, or relative to another folder: relative paths of a job file begin at "
    "the working directory of the command, not at the job file.",
    remedy="State the full path; `weights.bin` lies beside `job.json`.",
)
OTHER_NAMES = Entry(
    "command.other_names", "other names than {factory} gives: leave model.names out"
)
OTHER_SIZES = Entry(
    "command.other_sizes", "other sizes or types than {factory} gives: leave model.parameters out"
)
ORDER_OF_NAMES = Entry(
    "command.order_of_names", "must list each parameter name of {factory} exactly once"
)
FACTORY_FOR_MEMORY = Entry(
    "command.factory_for_memory",
    "state it to plan memory: sizes come from the model, and no frame has shown it yet",
)

# flowcheck plan.

HOOK = Entry("plan.hook", "must be bf16 or fp16")
STATIC_GRAPH = Entry(
    "plan.static_graph",
    "cannot be combined with --accumulate: torch fails if the first backward pass of a static "
    "graph is under no_sync()",
    cause="torch itself refuses this combination.",
    remedy="Leave `--accumulate` or `--static-graph` out.",
)
NOT_A_TORCH_MODULE = Entry(
    "plan.not_a_torch_module",
    "gave {type}, not a torch module",
    cause="The function returned something else than the model.",
    remedy="Name a function that returns the torch module.",
)
FACTORY_ARGUMENT = Entry("plan.factory_argument", "write name=value, an argument of the factory")
NO_SHAPE_YET = Entry(
    "plan.no_shape_yet",
    "{name} has no shape before its first forward",
    cause="The module is lazy: its shape comes with the first input.",
    remedy="Return the model after a first forward, or with its sizes stated.",
)
SPARSE_MODULE = Entry(
    "plan.sparse_module",
    "{name} has sparse gradients: no plan covers them",
    cause="Sparse gradients are sent in another way than dense ones.",
    remedy="Plan it with sparse=False, or without this module.",
)
NO_GRADIENTS = Entry(
    "plan.no_gradients",
    "no parameter requires a gradient",
    cause="All parameters are frozen.",
    remedy="Name a function that returns the model as the script trains it.",
)
SCALAR_LOSS = Entry("plan.scalar_loss", "must give a loss of no dimensions, called with MODEL")
TWO_RANKS = Entry(
    "plan.two_ranks",
    "must be 2 or more: a ring has 2 ranks",
    cause="It is the number of ranks that train the model together; one alone sends nothing.",
    remedy="State the world size of the training job: `torchrun`'s nodes times processes a node.",
)
TOO_MANY_RANKS = Entry(
    "plan.too_many_ranks",
    "at most {most:,} ranks are supported",
    cause="The job is larger than FlowCheck plans.",
    remedy="Plan one data-parallel group of it: `--world` is the number of its ranks.",
)
NODES = Entry("plan.nodes", "must divide the {ranks} ranks into two nodes or more")
