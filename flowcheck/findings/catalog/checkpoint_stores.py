"""What a target of [persist] refuses, or does not hold as it was written."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

ACCESS_DENIED = Entry(
    "store.access_denied",
    "access denied ({error}): check the store's credentials and the permissions on the target",
    cause="S3 or another store refused.",
    remedy="Check the credentials in the environment that the services run in.",
    section="saving",
)
NO_BUCKET = Entry(
    "store.no_bucket",
    "there is no such bucket or container: create it first ({error})",
    remedy="Create the bucket or container.",
)
NOT_REACHED = Entry(
    "store.not_reached", "the store cannot be reached, or does not answer ({error})"
)
REFUSES = Entry("store.refuses", "the store refuses the request ({error})")
AT_PATH = Entry("store.at_path", "{path}: {why}")
DAMAGED_FILE = Entry(
    "store.damaged_file",
    "{file} is not as its manifest says: it cannot be served",
    cause="A file of a checkpoint was changed or torn.",
    remedy="`flowcheck verify` names the tensor; restore another step.",
    section="saving",
)
NOT_AS_SENT = Entry(
    "store.not_as_sent", "{place}: the stored bytes are not those sent; the file is sent again"
)
SIZE_DIFFERS = Entry(
    "store.size_differs", "{place}: the store holds {stored} bytes of {sent} that were sent"
)
NOT_READ_BACK = Entry("store.not_read_back", "{place}: does not read back as it was written")
TOO_LONG = Entry("store.too_long", "{place}: has {bytes:,} bytes; at most {limit:,} are read")
LONGER_THAN = Entry("store.longer_than", "{place}: is longer than {limit:,} bytes")
MANIFEST_DIFFERS = Entry(
    "store.manifest_differs", "{place}: its {manifest} is not what was written"
)
LONGER_THAN_ASKED = Entry(
    "store.longer_than_asked", "{place}: {bytes:,} bytes came, {asked:,} were requested"
)
STOPPED = Entry(
    "store.stopped",
    "stopped before it was finished: the process was told to end; what was sent is not sent again",
)

# The settings.

NEEDS_FSSPEC = Entry("store.needs_fsspec", "needs fsspec: pip install fsspec")
NEEDS_PACKAGE = Entry("store.needs_package", "needs {package}: pip install {package}")
NEEDS_MORE = Entry("store.needs_more", "needs a package that is not installed: {error}")
UNKNOWN_SCHEME = Entry("store.unknown_scheme", "{scheme}:// is not a scheme that fsspec supports")
OPTIONS_REFUSED = Entry("store.options_refused", "are refused: {error}")

# The ledger: the list of checkpoints at the target.

_ASIDE = "Name another `persist.target`, or move the file aside."
LEDGER_UNREADABLE = Entry(
    "ledger.unreadable",
    "{ledger}: not a list of checkpoints of FlowCheck ({error}): nothing is written or removed "
    "there; name another persist.target, or move that file aside",
    remedy=_ASIDE,
)
LEDGER_WRONG = Entry(
    "ledger.wrong",
    "{error}: nothing is written or removed there; name another persist.target, or move that "
    "file aside",
    remedy=_ASIDE,
)
LEDGER_FORMAT = Entry(
    "ledger.format",
    "{ledger}: has format {format}, this release reads format 1: update FlowCheck",
)
LEDGER_STEP = Entry(
    "ledger.step", "{ledger}: lists {name} as step {step} of digest {digest}, which differs"
)
