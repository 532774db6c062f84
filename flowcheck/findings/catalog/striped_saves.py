"""Saves that are cut into k + m blocks on several stores."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

NEEDS_ISAL = Entry(
    "stripes.needs_isal",
    "saves on several stores need ISA-L, which this FlowCheck was built without, or which is not "
    "installed ({error})",
    remedy="Install Debian's `libisal-dev` (to run alone `libisal2`) and build again: "
    "`scripts/demo` does, or `python dpdk_ext/build_ffi.py`.",
)
_READ_AROUND = (
    "The step is read from the other stores while as many as `data_blocks` are whole, and a chain "
    "that runs makes the blocks again. Check the disk."
)
NO_SHARD = Entry("stripes.no_shard", "{file}: is no file of blocks", remedy=_READ_AROUND)
SHARD_DAMAGED = Entry("stripes.shard_damaged", "{file}: its {part} is damaged", remedy=_READ_AROUND)
SHARD_VERSION = Entry(
    "stripes.shard_version",
    "{file}: has version {version}, this release reads {known}",
    remedy="Update FlowCheck on the machine that reads it.",
)
SHARD_OF_OTHER = Entry("stripes.shard_of_other", "{file}: is of another save", remedy=_READ_AROUND)
SHARD_TWICE = Entry(
    "stripes.shard_twice",
    "{file}: has blocks {shard}, which another store has too",
    remedy=_READ_AROUND,
)
BLOCK_DAMAGED = Entry(
    "stripes.block_damaged", "{file}: block {stripe} is damaged", remedy=_READ_AROUND
)
BLOCK_MISSING = Entry(
    "stripes.block_missing", "{file}: block {stripe} is missing", remedy=_READ_AROUND
)
NOT_THERE = Entry("stripes.not_there", "{file} is not there", remedy=_READ_AROUND)
TOO_LARGE = Entry(
    "stripes.too_large",
    "{name} has {bytes:,} bytes; saves on several stores have at most {limit:,}",
    cause="The digests of so many blocks are not read.",
    remedy="Save to one store: `target` in place of `targets`.",
)
TOO_FEW_TOOK = Entry(
    "stripes.too_few_took",
    "{took} of {stores} stores took {name}, and {needed} are needed: {why}",
    cause="More stores than `parity_blocks` are down or full. What the others took is not sent "
    "again.",
    remedy="Bring back the stores that are named; the save is tried again.",
    section="saving",
)
TOO_FEW_ANSWER = Entry(
    "stripes.too_few_answer",
    "{path}: {answered} of {stores} stores answer, and {needed} are needed: {why}",
    cause="So many stores are down or damaged that the others may not know the newest step.",
    remedy="Bring back the stores that are named. Or restore a step by its number, `--step N`: "
    "that needs `data_blocks` of the stores.",
    section="saving",
)
TOO_FEW_SHARDS = Entry(
    "stripes.too_few_shards",
    "{name}: {found} of {stores} stores have their blocks of it, and {needed} are needed: {why}",
    cause="More stores than the code has parities are gone, or their files are damaged.",
    remedy="Bring back one of the stores that are named, or restore another step.",
    section="saving",
)
TOO_FEW_BLOCKS = Entry(
    "stripes.too_few_blocks",
    "{name}: stripe {stripe} has {found} whole blocks, and {needed} are needed: {why}",
    cause="Blocks of more stores than the code has parities are damaged or missing.",
    remedy="Bring back one of the stores that are named, or restore another step.",
    section="saving",
)
NO_MANIFEST = Entry(
    "stripes.no_manifest",
    "{name}: no store has the manifest of these blocks: it was not saved to its end",
    remedy="Restore another step.",
)
BAD_SET = Entry(
    "stripes.bad_set",
    "{file}: is no list of stores of FlowCheck ({error})",
    remedy="Name another one of the stores.",
)
READ_WITHOUT = Entry(
    "stripes.read_without",
    "read without blocks of {stores} of {of} stores, made again from the others; {left} more may "
    "be lost: {why}",
    remedy="Bring back the stores that are named, or keep a copy of the step that was read.",
)
HEADS_DAMAGED = Entry(
    "stripes.heads_damaged",
    "{stores} of {of} stores have files whose head, or list of digests, is damaged. Their blocks "
    "are read by what the others say; {left} more may be lost: {why}",
    remedy="A chain that runs makes these files again. Check the disks.",
)
LIST_GONE = Entry(
    "stripes.list_gone",
    "{ledger}: is of one of several stores, and the list of the others, stripes.json, is gone "
    "there",
    remedy="Name another one of the stores. A chain that saves there gives the list back, if an "
    "empty file `stripes.new` lies in the folder.",
)
SAVED_WITHOUT = Entry(
    "stripes.saved_without",
    "{name} is durable on {took} of {stores} stores, and {left} of them may still be lost: {why}",
    cause="A store is down, full, or refuses.",
    remedy="Bring it back: its blocks of this step are made again from the others within minutes, "
    "while the chain runs. A new disk in its place gets the folder, with an empty file "
    "`stripes.new` in it.",
    section="saving",
)
MADE_AGAIN = Entry(
    "stripes.made_again",
    "{name}: blocks were made again from those of other stores: {why}",
    cause="A store was away, is new, or its disk damaged what was written.",
    remedy="Nothing is lost. Where a block was damaged, check the disk.",
    section="saving",
)
NOT_MENDED = Entry(
    "stripes.not_mended",
    "{name} lacks blocks of {stores} of {of} stores, and they could not be made again: {why}",
    cause="A store is down, full or refuses; or so many have lost blocks that these are gone.",
    remedy="Bring back the stores that are named, or put a new disk there, with the folder and an "
    "empty file `stripes.new` in it; it is tried again by itself. Keep a copy of the "
    "step, while it can be read: `flowcheck restore --from STORE --step N --format torch --out "
    "FILE`.",
    section="saving",
)
NO_MORE_LISTED = Entry(
    "stripes.no_more_listed",
    "{name} is being removed, so its blocks are not made again",
    remedy="None is needed.",
)
STORES_COUNT = Entry(
    "stripes.stores_count",
    "are {stores}, and data_blocks + parity_blocks are {blocks}",
    remedy="Name one store for each block: k + m of them.",
)
STORES_TWICE = Entry(
    "stripes.stores_twice",
    "names {store} twice: its loss would be the loss of two blocks of each stripe",
    remedy="Name a store once.",
)
BLOCKS_TOO_MANY = Entry(
    "stripes.blocks_too_many",
    "are more than {limit} blocks of a stripe: at most so many stores",
    remedy="Name fewer stores.",
)
TARGET_OR_TARGETS = Entry(
    "stripes.target_or_targets",
    "one store is named by target, several by targets",
    remedy="Leave one of them out.",
)
CODE_WITHOUT_TARGETS = Entry(
    "stripes.code_without_targets",
    "is of several stores, and `targets` names none",
    remedy="Name the stores in `[persist] targets`, or leave it out.",
)
STRANGERS_FILE = Entry(
    "stripes.strangers_file",
    "{file}: FlowCheck did not write it, and the save needs the folder's name",
    remedy="Move the folder aside, or name another folder in `[persist] targets`.",
)
NO_ANSWER = Entry(
    "stripes.no_answer",
    "{store}: does not answer for {seconds} s",
    cause="Its machine, network or mount hangs.",
    remedy="Bring it back, or mount it so that it fails (`soft`); the others are used without it.",
)
NUMBER_TWICE = Entry(
    "stripes.number_twice",
    "{path}: stores have different contents of the same number {number}",
    cause="Two chains write to the same stores.",
    remedy="Give each run stores of its own (`[persist] targets`). Remove the file at the stores "
    "that the stopped chain wrote to last.",
    section="saving",
)
OTHER_SET = Entry(
    "stripes.other_set",
    "{stores} hold steps of another set of stores: {data} + {parity} on {known}",
    cause="`targets`, `data_blocks` or `parity_blocks` were changed. The steps there would lose "
    "stores without a word.",
    remedy="Name the stores as they were, or new folders for all of `targets`.",
    section="saving",
)
NOT_THE_STORE = Entry(
    "stripes.not_the_store",
    "{store}: has no {file}, which the other stores have",
    cause="A disk is not mounted, or it is a new one.",
    remedy="Mount it. For a new disk make the folder, and an empty file stripes.new in it.",
    section="saving",
)
BLOCKS_ALONE = Entry(
    "stripes.blocks_alone",
    "{path}: steps lie here as blocks of several stores; one store alone has no file to compare",
    remedy="Restore the step, which checks each block, and verify the result: `flowcheck restore "
    "--from STORE --format torch --out FILE`.",
)
SAME_FOLDER = Entry(
    "stripes.same_folder",
    "{one} and {other} are one folder by two names: its loss would be that of two stores",
    remedy="Name folders of different disks in `[persist] targets`.",
)
SECRET_IN_URL = Entry(
    "stripes.secret_in_url",
    "{store}: has a user or password, and every store would hold it",
    remedy="Leave it to the environment, or to `[persist] options`.",
)
