"""Options, and files of the job, that a command does not take."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

FOLDER_REMOVED = Entry(
    "command.folder_removed",
    "the folder was removed",
    cause="The shell still stands in a folder that somebody deleted.",
    remedy="`cd` to a folder that exists.",
)
FILE_ERROR = Entry("command.file_error", "{path}: {error}", also=("errno", "why"))
"""errno: its name, ENOENT. why: what it means for the path, with the remedy."""
FILE_EXPECTED = Entry(
    "command.file_expected",
    "{path} is a folder",
    cause="A file is expected there, and it is a folder.",
    remedy="Name a file: {path!q} is a folder.",
)
FOLDER_EXPECTED = Entry(
    "command.folder_expected",
    "{path} is a file",
    cause="A folder is expected there, and it is a file.",
    remedy="Name another folder: {path!q} is a file.",
)
NAME_TAKEN = Entry(
    "command.name_taken",
    "{path} already exists",
    cause="The command would overwrite it.",
    remedy="Name another path, or move away what is there (`ls -ld {path!q}`).",
)
FOLDER_MISSING = Entry(
    "command.folder_missing",
    "there is no folder {folder}",
    cause="The folder that it is to be in does not exist.",
    remedy="Correct the path, or make the folder first: `mkdir -p {folder!q}`.",
)
NO_SUCH_FILE = Entry(
    "command.no_such_file",
    "there is no {path}",
    also=("folder",),
    cause="Its folder exists, and holds nothing of that name.",
    remedy="Correct the path, whose folder exists: `ls {folder!q}` shows what is there.",
)
NOT_PERMITTED = Entry(
    "command.not_permitted",
    "user {user} may not",
    also=("path",),
    cause="The file, or a folder on the way to it, belongs to another user and is closed to this "
    "one.",
    remedy="Give user {user} access, or name another path: `namei -l {path!q}` shows the owner and "
    "rights of each part.",
)
NOTHING_MADE_THERE = Entry(
    "command.nothing_made_there",
    "{path} cannot be created in {folder}",
    cause="Nothing can be created there: what its file system holds, the kernel alone makes.",
    remedy="Name a path on another file system (`findmnt -T {folder!q}` shows this one).",
)
READ_ONLY = Entry(
    "command.read_only",
    "the file system of {path} is read-only",
    also=("folder",),
    cause="Nothing can be written to a file system that is mounted read-only.",
    remedy="Name a path on another file system (`findmnt -T {folder!q}` shows this one).",
)
TOO_MANY_OPEN = Entry(
    "command.too_many_open",
    "too many files are open",
    cause="This user, or the machine, may not open more files at once.",
    remedy="Raise the limit of open files (`ulimit -n`), then run the command again.",
)
TOO_LARGE = Entry(
    "command.file_too_large",
    "{path} may not grow as large",
    also=("folder",),
    cause="A limit of this user on the size of files, or of the file system, is reached.",
    remedy="Raise the limit (`ulimit -a` shows it as file size), or name a path on another file "
    "system (`findmnt -T {folder!q}` shows this one).",
)
FILE_FAILED = Entry(
    "command.file_failed",
    "{path} failed",
    remedy="Check the path and its permissions (`ls -ld {path!q}`), and what the kernel says of "
    "its disk (`dmesg`).",
)
NO_ROOM_AT = Entry(
    "command.no_room_at",
    "{path}: no room left on the file system at {mount} ({error}): {free_mib:,} MiB of "
    "{total_mib:,} MiB are free there",
    section="processes",
    cause="The disk is full, or the user's quota of it. What was being written is gone; what was "
    "there before is as it was.",
    remedy="Free space there (`df`), or name a folder on another file system; then run the "
    "command again.",
)
NO_INODE_AT = Entry(
    "command.no_inode_at",
    "{path}: no room left on the file system at {mount}: it has no inode for another "
    "file (df -i), with {free_mib:,} MiB free",
    cause="The file system holds as many files as it can, however small they are.",
    remedy="Remove files that are not needed there, or name a folder on another file system.",
)
NO_ROOM = Entry(
    "command.no_room",
    "no room left on the file system of the run directory, of the checkpoints or of shared memory",
    remedy="`df` shows which one is full; free space there, then run the command again.",
)
NOT_A_PICTURE = Entry(
    "command.not_a_picture",
    "is a file that is not a picture of FlowCheck's",
    cause="`--svg` replaces only pictures that FlowCheck drew.",
    remedy="Name another file.",
)
DRAWS_SVG = Entry(
    "command.draws_svg",
    "names a file of another kind: the drawing is SVG",
    remedy="Name a file that ends in .svg; browsers show it, `rsvg-convert` makes PNG of it.",
)
CANNOT_LISTEN = Entry(
    "command.cannot_listen",
    "cannot listen there ({error})",
    remedy="State another address or port; `ss -ltnp` shows what listens there.",
)
NOT_A_MESSAGE = Entry(
    "command.not_a_message",
    "not a FlowCheck message: {frame} ({error})",
    cause="Another program, or another release of FlowCheck, sends to this chain's sockets.",
    remedy="Stop it; one release must start all stages.",
)
OPTIMIZER_STATED = Entry(
    "command.optimizer_stated",
    "the job file states the optimizer",
    remedy="Leave `--optimizer` and `--lr` out, or change `[optimizer]` of the job file.",
)
REPLAY_SOURCE = Entry(
    "command.replay_source",
    "no such source",
    remedy="Give auto, dpdk or file; the default, auto, is dpdk where it is built.",
)
COMMA_IN_PATH = Entry(
    "command.comma_in_path",
    "DPDK takes no path with a comma",
    remedy="Use `--source file`, or rename the file.",
)
NO_EARLIER_RUN = Entry(
    "command.no_earlier_run",
    "no earlier run is recorded there: its records are kept when the next run starts",
    remedy="`flowcheck status{this_run!o}` without `--previous` shows it.",
)
NOTHING_TO_DRAW = Entry(
    "command.nothing_to_draw",
    "the job is not learned yet: there is nothing to draw",
    remedy="`flowcheck status{this_run!o}` shows what learning waits for; draw it then.",
)
LATER_CHECKPOINT_OR_JOB = Entry(
    "command.later_checkpoint_or_job",
    "the run has several jobs, and one checkpoint does not show the job it is of",
    also=("run",),
    remedy="Give a later checkpoint too (`--then LATER`), or name the job: `--run {run!q}/jobs/N`.",
)

# The model of the job file.

LEARNED_MISSING = Entry(
    "command.learned_missing",
    "no such file",
    cause="The path is wrong, or relative to another folder: relative paths of a job file begin at "
    "the working directory of the command, not at the job file.",
    remedy="State the full path of `job.json` in `learned/` of a run; `weights.bin` lies beside "
    "it.",
)
OTHER_NAMES = Entry(
    "command.other_names",
    "other names than {factory} gives",
    remedy="Leave `model.names` out, or correct the names.",
)
OTHER_SIZES = Entry(
    "command.other_sizes",
    "other sizes or types than {factory} gives",
    remedy="Leave `model.parameters` out, or correct them.",
)
ORDER_OF_NAMES = Entry(
    "command.order_of_names",
    "must list each parameter name of {factory} exactly once",
    remedy="Correct the list, or leave it out where the model registers its parameters in this "
    "order.",
)
FACTORY_FOR_MEMORY = Entry(
    "command.factory_for_memory",
    "the sizes to plan memory with come from the model, and no frame has shown it yet",
    remedy='State `factory = "file.py:function"` in `[model]`, the function that returns the '
    "model.",
)

# flowcheck plan.

HOOK = Entry(
    "plan.hook",
    "no such hook",
    remedy="Give bf16 or fp16, or leave the option out if the trainer registers no hook.",
)
STATIC_GRAPH = Entry(
    "plan.static_graph",
    "cannot be combined with --accumulate: torch fails if the first backward pass of a static "
    "graph is under no_sync()",
    remedy="Leave `--accumulate` or `--static-graph` out.",
)
NOT_A_TORCH_MODULE = Entry(
    "plan.not_a_torch_module",
    "gave {type}, not a torch module",
    remedy="Name a function that returns the torch module.",
)
FACTORY_ARGUMENT = Entry(
    "plan.factory_argument",
    "not an argument of the factory",
    remedy="Write it as name=value.",
)
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
    remedy="Name a function that returns the model as the script trains it.",
)
SCALAR_LOSS = Entry(
    "plan.scalar_loss",
    "must give a loss of no dimensions, called with MODEL",
    remedy="Correct the function, for example `lambda model: model(x).sum()`, or leave `--loss` "
    "out.",
)
TWO_RANKS = Entry(
    "plan.two_ranks",
    "must be 2 or more: a ring has 2 ranks",
    cause="It is the number of ranks that train the model together; one alone sends nothing.",
    remedy="State the world size of the training job: `torchrun`'s nodes times processes a node.",
)
TOO_MANY_RANKS = Entry(
    "plan.too_many_ranks",
    "at most {most:,} ranks are supported",
    remedy="Plan one data-parallel group of it: `--world` is the number of its ranks.",
)
NODES = Entry(
    "plan.nodes",
    "must divide the {ranks} ranks into two nodes or more",
    remedy="State the number of servers of the job, or leave the option out.",
)
