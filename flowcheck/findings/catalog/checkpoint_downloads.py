"""Why a checkpoint cannot be served, or downloaded from a server or a store."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# The server.

CANNOT_LISTEN = Entry("serve.cannot_listen", "cannot listen on {host}: {error}")
TOKEN_FILE = Entry(
    "serve.token_file",
    "must hold one token of at least {characters} ASCII characters on one line; `head -c 24 "
    "/dev/urandom | base64` makes one",
)
FILE_UNREADABLE = Entry("serve.file_unreadable", "cannot be read: {error}")
TOO_MANY_IN_MEMORY = Entry(
    "serve.too_many_in_memory",
    "{steps} steps that lie in memory alone are being downloaded, and there is no room for "
    "another: ask for one of these, or try again later",
)
CERTIFICATE_AND_KEY = Entry(
    "serve.certificate_and_key",
    "does not go with the key {key}, as PEM without a password: {error}",
)
CERTIFICATE_AND_OWN_KEY = Entry(
    "serve.certificate_and_own_key",
    "does not go with a key in the same file, as PEM without a password: {error}",
)
CA_WITHOUT_TLS = Entry("serve.ca_without_tls", "is of https://..., not of {url}: leave it out")
INVALID_CA = Entry("serve.invalid_ca", "is not a certificate in PEM: {error}")

# What the server answers to a request that it refuses.

NO_TOKEN_SET = Entry(
    "serve.no_token_set",
    "without a token this server answers only root and the user that it runs as: state "
    "serve.token_file, and send the token in it",
)
WRONG_TOKEN = Entry("serve.wrong_token", "the token that was sent is not this server's")
TOKEN_MISSING = Entry("serve.token_missing", "send this server's token")
LOCAL_NAME_ONLY = Entry(
    "serve.local_name_only",
    "this server is for its own machine: name it 127.0.0.1 or localhost",
)
INVALID_URL = Entry("serve.invalid_url", "the request has no valid path or URL")
UNKNOWN_PATH = Entry(
    "serve.unknown_path", "there is no such path: /steps lists what can be requested"
)
SEVERAL_JOBS = Entry("serve.several_jobs", "there are several jobs here: {paths}")
NO_SUCH_STEP = Entry("serve.no_such_step", "there is no step {step}; there are {steps}")
NO_STEPS = Entry("serve.no_steps", "there is no step {step}; there are none yet")
STEP_REMOVED = Entry("serve.step_removed", "step {step} was removed to make room for newer ones")
NO_SUCH_FILE = Entry("serve.no_such_file", "step {step} has no file {file}")
RANGE_BEYOND_END = Entry(
    "serve.range_beyond_end", "the requested range lies beyond the end of the file"
)

# The client: what the other side does.

SERVER_ANSWERS = Entry("download.server_answers", "the server answered HTTP {status}: {said}")
SERVER_STATUS = Entry("download.server_status", "the server answered HTTP {status}")
SHORT_ANSWER = Entry("download.short_answer", "{bytes:,} bytes came of {asked:,}")
CONNECTION_FAILED = Entry("download.connection_failed", "{kind}: {error}")

NO_HOST = Entry("download.no_host", "names no host")
BUSY = Entry("download.busy", "{url}: the server was busy for {seconds} s: {error}")
TRIED = Entry("download.tried", "{url}: cannot be downloaded from, {tries} tries failed: {error}")
GIVEN_UP = Entry("download.given_up", "{url}: stopped: {error}")
NOT_WRITTEN_IN_TIME = Entry(
    "download.not_written_in_time", "{url}: step {step} was not written within {seconds} s"
)
NO_MANIFEST_THERE = Entry("download.no_manifest", "{url}: step {step} has no {manifest}")
NO_STEP_THERE = Entry(
    "download.no_step", "{url}: there is no step {step}: {name} has no {manifest}"
)
OTHER_STEP = Entry(
    "download.other_step", "{url}: the server answered with step {step}, {asked} was requested"
)
STEP_OF_NAME = Entry("download.step_of_name", "{url}: {name} holds step {step} of {digest}")
NOTHING_DURABLE = Entry(
    "download.nothing_durable", "{url}: holds no finished checkpoint: it has no {latest} file"
)
REMOVED = Entry(
    "download.removed", "{url}: {name} was removed to make room for newer ones: ask for those"
)
MORE_THAN_ASKED = Entry(
    "download.more_than_asked", "{url}: {file}: more than the {bytes} bytes requested came"
)
OTHER_RANGE = Entry(
    "download.other_range",
    "{url}: {file}: the server answered with range {range}, not the requested one",
)
FILE_REPLACED = Entry(
    "download.file_replaced", "{url}: {file} was replaced there meanwhile: start again"
)
UNEXPECTED_STATUS = Entry("download.unexpected_status", "{url}: HTTP {status} for {file}")
LISTING_TOO_LONG = Entry(
    "download.listing_too_long",
    "{url}: unexpected reply: the list of files is longer than {bytes:,} bytes",
)
UNEXPECTED_REPLY = Entry(
    "download.unexpected_reply", "{url}: unexpected reply: not one of flowcheck serve"
)
DENIED = Entry(
    "download.denied",
    "{url}: access denied: {said}: --token-file names the file that holds the bearer token",
    remedy="Give `--token-file` the file that holds the server's bearer token.",
)
REFUSED = Entry("download.refused", "{url}: {said}")
UNTRUSTED = Entry(
    "download.untrusted",
    "{url}: its certificate is not trusted: {error}: --ca names the CA bundle (PEM)",
    remedy="Give `--ca` the CA bundle (PEM) of the server's certificate.",
)

# The client: what came of it.

OTHER_CHECKPOINT_HERE = Entry(
    "download.other_checkpoint_here",
    "{folder}: another checkpoint is already here: download into another folder",
)
CHECKSUM_MISMATCH = Entry(
    "download.checksum_mismatch", "{url}: {file}: checksum mismatch, also after a retry"
)
DAMAGED_STEP = Entry("download.damaged_step", "{url}: step {step}: {fault}")
DISK_TOO_SMALL = Entry(
    "download.disk_too_small",
    "{folder}: {missing:,} bytes are still to be downloaded, and {free:,} are free there: make "
    "room, or download to another disk",
)
DOWNLOAD_RUNNING = Entry(
    "download.running", "{folder}: another process is downloading this step there"
)
