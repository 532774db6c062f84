"""What a target of [persist] refuses, or does not hold as it was written."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_OTHER_FILE = (
    "The file at the target was changed or replaced by another program, or is not FlowCheck's."
)

ACCESS_DENIED = Entry(
    "store.access_denied",
    "the store denies access ({error})",
    cause="S3 or another store refused.",
    remedy="Check the store's credentials in the environment that the services run in, and the "
    "permissions on the target.",
    section="saving",
)
NO_BUCKET = Entry(
    "store.no_bucket",
    "there is no such bucket or container ({error})",
    remedy="Create the bucket or container.",
)
NOT_REACHED = Entry(
    "store.not_reached",
    "the store cannot be reached, or does not answer ({error})",
    cause="The network, the name server or the store itself failed.",
    remedy="Check the endpoint in `[persist] options` and the network; the save is tried again.",
)
REFUSES = Entry(
    "store.refuses",
    "the store refuses the request ({error})",
    cause="The store answered that it does not do this.",
    remedy="See the store's own log; check the bucket's policy and `[persist] options`.",
)
AT_PATH = Entry("store.at_path", "{path}: {why}")
DAMAGED_FILE = Entry(
    "store.damaged_file",
    "{file} is not as its manifest says: it cannot be served",
    cause="A file of a checkpoint was changed or torn.",
    remedy="`flowcheck verify FOLDER` names the tensor; restore another step.",
    section="saving",
)
NOT_AS_SENT = Entry(
    "store.not_as_sent",
    "{place}: the stored bytes are not those sent; the file is sent again",
    cause="Bytes were changed on the way to the store.",
    remedy="It is sent again. If it happens again, check the store's and this machine's memory "
    "and network.",
)
SIZE_DIFFERS = Entry(
    "store.size_differs",
    "{place}: the store holds {stored} bytes of {sent} that were sent",
    cause="The upload was cut off, or another program wrote the same file.",
    remedy="It is sent again. If it happens again, see who else writes there.",
)
NOT_READ_BACK = Entry(
    "store.not_read_back",
    "{place}: does not read back as it was written",
    cause="The disk or the network file system returned other bytes than were written.",
    remedy="Check the disk (`dmesg`, `smartctl`) and save elsewhere until it is replaced.",
)
TOO_LONG = Entry(
    "store.too_long",
    "{place}: has {bytes:,} bytes; at most {limit:,} are read",
    cause=_OTHER_FILE,
    remedy="Restore another step, or give the chain a target of its own.",
)
LONGER_THAN = Entry(
    "store.longer_than",
    "{place}: is longer than {limit:,} bytes",
    cause=_OTHER_FILE,
    remedy="See what wrote it; restore another step, or give the chain a target of its own.",
)
MANIFEST_DIFFERS = Entry(
    "store.manifest_differs",
    "{place}: its {manifest} is not what was written",
    cause=_OTHER_FILE,
    remedy="See what wrote it; the step is saved again at the next turn.",
)
LONGER_THAN_ASKED = Entry(
    "store.longer_than_asked",
    "{place}: {bytes:,} bytes came, {asked:,} were requested",
    cause="The store does not answer requests for parts of files as it should.",
    remedy="Check the store's proxy or gateway; `[persist] options` can name another endpoint.",
)
STOPPED = Entry(
    "store.stopped",
    "stopped before it was finished: the process was told to end; what was sent is not sent again",
)

# The settings.

NEEDS_FSSPEC = Entry(
    "store.needs_fsspec",
    "needs fsspec, which is not installed",
    remedy="`pip install fsspec` in the Python that runs FlowCheck.",
)
NEEDS_PACKAGE = Entry(
    "store.needs_package",
    "needs {package}, which is not installed",
    remedy="`pip install {package}` in the Python that runs FlowCheck.",
)
NEEDS_MORE = Entry(
    "store.needs_more",
    "needs a package that is not installed: {error}",
    cause="A package that the store's own package needs is missing.",
    remedy="Install the one that the sentence names: `pip install NAME`.",
)
UNKNOWN_SCHEME = Entry(
    "store.unknown_scheme",
    "{scheme}:// is not a scheme that fsspec supports",
    cause="No installed package knows the scheme.",
    remedy="Use a folder, `s3://`, or another scheme of fsspec, and install its package.",
)
OPTIONS_REFUSED = Entry(
    "store.options_refused",
    "are refused: {error}",
    cause="The package that speaks to this store does not take these options.",
    remedy="Correct `[persist] options`: they are those of the store's fsspec package.",
)

OPTIONS_MISSING = Entry(
    "store.options_missing",
    "{scheme}:// needs options ({names}), and FlowCheck takes none of them from the URL",
)
NEEDS_OPTIONS = Entry(
    "store.needs_options",
    "a store of this kind cannot be opened by its URL alone: {error}",
    remedy="Copy the checkpoint to this machine and name it with `--checkpoint FOLDER`, or name "
    "the URL of a `flowcheck serve`.",
)

# The ledger: the list of checkpoints at the target.

_ASIDE = "Name another `persist.target`, or move the file aside."
LEDGER_UNREADABLE = Entry(
    "ledger.unreadable",
    "{ledger}: not a list of checkpoints of FlowCheck ({error}): nothing is written or "
    "removed there",
    remedy=_ASIDE,
)
LEDGER_WRONG = Entry(
    "ledger.wrong",
    "{error}: nothing is written or removed there",
    remedy=_ASIDE,
)
LEDGER_FORMAT = Entry(
    "ledger.format",
    "{ledger}: has format {format}, this release reads format 1",
    cause="A later release wrote the list of checkpoints there.",
    remedy="Update FlowCheck, or name another `persist.target`.",
)
LEDGER_STEP = Entry(
    "ledger.step",
    "{ledger}: lists {name} as step {step} of digest {digest}, which differs",
    cause="Two checkpoints of one step are there: another run saved to the same target.",
    remedy="Give each run a target of its own (`[persist] target`), then save again.",
)
LEDGER_NAMES_NONE = Entry(
    "ledger.names_none",
    "{ledger} does not name them, or is not there",
    remedy="Copy it from the folder or store that the run saved to.",
)
SEVERAL_OF_STEP = Entry(
    "ledger.several_of_step",
    "{folder}: {checkpoints} are both of step {step}, and which one is of the newest past cannot "
    "be read: {why}",
    cause="The replica went back, as to a checkpoint of the trainer, and took the step anew. Which "
    "was saved last is in the list of checkpoints, which was not copied with them or is damaged.",
    remedy="Copy `checkpoints.json` from the target to {folder}, or name one of the checkpoints in "
    "place of the folder: {folder}/NAME; its manifest has the digest, `steps.jsonl` of the run "
    "those of its past.",
)
SAVED_BESIDE = Entry(
    "store.saved_beside",
    "{target}: another chain saves here too: {name}, by the run {run}",
    cause="Two job files name one place. `latest` and a restore without `--step` give whichever "
    "saved last.",
    remedy="Give each chain a `target` or `targets` of its own in `[persist]`. Restore this run's "
    "steps by their numbers.",
    section="saving",
)
