"""Why a checkpoint cannot be served, or downloaded from a server or a store."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

_KEY_PAIR = "The certificate and the private key are not a pair, or the key has a password."
_OTHER_SERVER = (
    "The address leads to another program, to a proxy, or to another release of FlowCheck."
)
_CHECK_SERVER = (
    "Check the URL, and open it with `curl`: the server must be `flowcheck serve` of this release."
)

# The server.

CANNOT_LISTEN = Entry(
    "serve.cannot_listen",
    "cannot listen on {host}: {error}",
    cause="Another program has the port, or the address is not one of this machine.",
    remedy="`ss -ltnp` shows who has it; give another `--port`, or the right `--host`.",
)
TOKEN_FILE = Entry(
    "serve.token_file",
    "must hold one token of at least {characters} ASCII characters on one line",
    remedy="Make one: `openssl rand -base64 24 > FILE`, then `chmod 600 FILE`.",
)
FILE_UNREADABLE = Entry(
    "serve.file_unreadable",
    "cannot be read: {error}",
    cause="The file is missing, or the user of this process may not read it.",
    remedy="Check the path and its permissions (`ls -l`).",
)
TOO_MANY_IN_MEMORY = Entry(
    "serve.too_many_in_memory",
    "{steps} steps that lie in memory alone are being downloaded, and there is no room for another",
    remedy="Ask for one of these steps, or try again when a download has ended.",
)
CERTIFICATE_AND_KEY = Entry(
    "serve.certificate_and_key",
    "does not go with the key {key}, as PEM without a password: {error}",
    cause=_KEY_PAIR,
    remedy="Give `--tls-certificate` and `--tls-key` of one pair, the key without a password.",
)
CERTIFICATE_AND_OWN_KEY = Entry(
    "serve.certificate_and_own_key",
    "does not go with a key in the same file, as PEM without a password: {error}",
    cause=_KEY_PAIR,
    remedy="Give the key that belongs to the certificate with `--tls-key`, without a password.",
)
CA_WITHOUT_TLS = Entry(
    "serve.ca_without_tls",
    "is of https://..., not of {url}",
    remedy="Leave the option out, or give the URL with https:// if the server has a certificate.",
)
INVALID_CA = Entry(
    "serve.invalid_ca",
    "is not a certificate in PEM: {error}",
    cause="The file is of another format (DER, PKCS 12), or damaged.",
    remedy="Give the CA bundle as PEM: `openssl x509 -inform der -in FILE -out FILE.pem` converts "
    "it.",
)

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

NO_HOST = Entry(
    "download.no_host",
    "names no host",
    remedy="State it whole: `http://HOST:PORT`.",
)
BUSY = Entry(
    "download.busy",
    "{url}: the server was busy for {seconds} s: {error}",
    cause="More downloads than the server allows run at the same time.",
    remedy="Try again later, or give `flowcheck serve` more `--connections`.",
)
TRIED = Entry(
    "download.tried",
    "{url}: cannot be downloaded from, {tries} tries failed: {error}",
    cause="The network or the server failed each time.",
    remedy="Check the server (`flowcheck status --run DIR` there) and the network; the same "
    "command goes on where it stopped.",
)
GIVEN_UP = Entry(
    "download.given_up",
    "{url}: stopped: {error}",
    cause="The download was stopped before its end.",
    remedy="Run the same command again: it goes on where it stopped.",
)
NOT_WRITTEN_IN_TIME = Entry(
    "download.not_written_in_time",
    "{url}: step {step} was not written within {seconds} s",
    cause="The server was asked for a step that its chain has not written so far.",
    remedy="Ask for the newest step (without `--step`), or wait and run it again.",
)
NO_MANIFEST_THERE = Entry(
    "download.no_manifest",
    "{url}: step {step} has no {manifest}",
    cause="The step was removed meanwhile, or was never finished.",
    remedy="Run the command again without `--step`: it takes the newest whole step.",
)
NO_STEP_THERE = Entry(
    "download.no_step",
    "{url}: there is no step {step}: {name} has no {manifest}",
    cause="The step is not there: it was removed by `keep_last`, or never saved.",
    remedy="Leave `--step` out for the newest, or list the folder for those that are there. Where "
    "steps are saved on several stores, and this one is empty or not mounted, name another one.",
)
DOUBTED_BY_SERVER = Entry(
    "download.doubted_by_server",
    "NOT proved exact: the server says of this step: {said}",
    cause="An audit that failed, or copies that differed, came to light behind the save; the "
    "server is of another release, whose words are not known here.",
    remedy="Take an earlier step, or restore with the release of FlowCheck that the server has.",
)
NOTES_UNREADABLE = Entry(
    "download.notes_unreadable",
    "NOT proved exact: what came to light behind its save cannot be read: {why}",
    cause="A run notes beside its checkpoints which of them an audit, or copies that differed, put "
    "in doubt.",
    remedy="Make {ledger} readable, or name the run that saved there; if nothing can be known any "
    "more, take the step despite that, or move the file away.",
    also=("ledger",),
)
OTHER_STEP = Entry(
    "download.other_step",
    "{url}: the server answered with step {step}, {asked} was requested",
    cause=_OTHER_SERVER,
    remedy=_CHECK_SERVER,
)
STEP_OF_NAME = Entry(
    "download.step_of_name",
    "{url}: {name} holds step {step} of {digest}",
    cause="The folder holds another step than its name says: it was renamed, or damaged.",
    remedy="Restore another step, or check it: `flowcheck verify FOLDER`.",
)
NOTHING_DURABLE = Entry(
    "download.nothing_durable",
    "{url}: holds no finished checkpoint: it has no {latest} file",
    remedy="Check the URL; `flowcheck status --run DIR` of the chain shows when it last saved one.",
)
REMOVED = Entry(
    "download.removed",
    "{url}: {name} was removed to make room for newer ones",
    remedy="Ask for one of the newer steps.",
)
MORE_THAN_ASKED = Entry(
    "download.more_than_asked",
    "{url}: {file}: more than the {bytes} bytes requested came",
    cause=_OTHER_SERVER,
    remedy=_CHECK_SERVER,
)
OTHER_RANGE = Entry(
    "download.other_range",
    "{url}: {file}: the server answered with range {range}, not the requested one",
    cause=_OTHER_SERVER,
    remedy=_CHECK_SERVER,
)
FILE_REPLACED = Entry(
    "download.file_replaced",
    "{url}: {file} was replaced there meanwhile",
    cause="The server wrote a newer checkpoint of that name during the download.",
    remedy="Run the command again: it begins with the new file.",
)
UNEXPECTED_STATUS = Entry(
    "download.unexpected_status",
    "{url}: HTTP {status} for {file}",
    cause=_OTHER_SERVER,
    remedy=_CHECK_SERVER,
)
LISTING_TOO_LONG = Entry(
    "download.listing_too_long",
    "{url}: unexpected reply: the list of files is longer than {bytes:,} bytes",
    cause=_OTHER_SERVER,
    remedy=_CHECK_SERVER,
)
UNEXPECTED_REPLY = Entry(
    "download.unexpected_reply",
    "{url}: unexpected reply: not one of flowcheck serve",
    cause=_OTHER_SERVER,
    remedy=_CHECK_SERVER,
)
DENIED = Entry(
    "download.denied",
    "{url}: access denied: {said}: --token-file names the file that holds the bearer token",
    remedy="Give `--token-file` the file that holds the server's bearer token.",
)
REFUSED = Entry(
    "download.refused",
    "{url}: {said}",
    remedy="Correct the URL, `--job` or `--step` as it says.",
)
UNTRUSTED = Entry(
    "download.untrusted",
    "{url}: its certificate is not trusted: {error}: --ca names the CA bundle (PEM)",
    remedy="Give `--ca` the CA bundle (PEM) of the server's certificate.",
)

# The client: what came of it.

OTHER_CHECKPOINT_HERE = Entry(
    "download.other_checkpoint_here",
    "{folder}: another checkpoint is already here: download into another folder",
    cause="The folder has a part of a download of another checkpoint.",
    remedy="Give another `--out`, or remove the folder.",
)
CHECKSUM_MISMATCH = Entry(
    "download.checksum_mismatch",
    "{url}: {file}: checksum mismatch, also after a retry",
    cause="Bytes were changed on the way, or the file on the server is damaged.",
    remedy="Check the server's copy there, `flowcheck verify FOLDER`; if it is whole, download "
    "again.",
)
DAMAGED_STEP = Entry(
    "download.damaged_step",
    "{url}: step {step}: {fault}",
    cause="The step on the server is not as its manifest says.",
    remedy="Check it on the server, `flowcheck verify FOLDER`, and restore another step with "
    "`--step N`.",
)
DISK_TOO_SMALL = Entry(
    "download.disk_too_small",
    "{folder}: {missing:,} bytes are still to be downloaded, and {free:,} are free there",
    remedy="Make room there (`df`), or download to another disk.",
)
DOWNLOAD_RUNNING = Entry(
    "download.running",
    "{folder}: another process is downloading this step there",
    cause="Another restore downloads the same step into the same folder.",
    remedy="Wait until it has ended, or give another `--out`.",
)
