"""Why an option of a checkpoint's format is refused: what it must be."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

FORMAT_WROTE_NO_FILE = Entry(
    "checkpoint_option.format_wrote_no_file",
    "the format {format} registered no file with the writer of checksums, so that nothing could "
    "verify or read the checkpoint: let its write() call `sums.file`",
    cause="The module of that checkpoint format does not tell which files it wrote.",
    remedy="Correct the module as the sentence says, or choose another `--format`.",
)
ONE_OF = Entry(
    "checkpoint_option.one_of",
    "not a known value",
    also=("choices",),
    remedy="Give one of {choices}.",
)
KEYS_FORM = Entry(
    "checkpoint_option.keys_form",
    "not of the form PART=KEY,... with PART one of {parts}",
    remedy="Write it as in `--keys model=state_dict`: the part, and the key that holds it in "
    "the file.",
)
KEY_OF_OTHER_PART = Entry(
    "checkpoint_option.key_of_other_part",
    "{key} is another part's key",
    cause="A key of the state_dict was given to two parts of the checkpoint.",
    remedy="Give each part a key of its own with `--keys`.",
)
KEY_TWICE = Entry(
    "checkpoint_option.key_twice",
    "two parts have this key",
    cause="A key of the state_dict was given to two parts of the checkpoint.",
    remedy="Give each part a key of its own with `--keys`.",
)
OF_OTHER_FORMAT = Entry(
    "checkpoint_option.of_other_format",
    "is an option of --format {formats}, not of {given}",
    remedy="Leave it out, or write that format.",
)
LIKE_WITH_TEMPLATE = Entry(
    "checkpoint_option.like_with_template",
    "is an option of --format; a --template holds all that --like could give",
    remedy="Leave it out.",
)
ZERO_STAGE = Entry(
    "checkpoint_option.zero_stage",
    "must be 0, 1 or 2",
    cause="The files of ZeRO stage 3 are not written.",
    remedy="Give `--zero 0`, 1 or 2; of stage 3 DeepSpeed makes its own files when the job "
    "saves again.",
)
LIKE_WITHOUT_CONFIG = Entry(
    "checkpoint_option.like_without_config",
    "holds no config.json",
    remedy="Name the model's folder, the one with config.json.",
)
LIKE_FILE_TOO_LARGE = Entry(
    "checkpoint_option.like_file_too_large",
    "is too large for a configuration file: has {bytes:,} bytes, at most {limit:,} are copied",
    cause="The folder given with `--like` has a file that is no configuration of a model.",
    remedy="Give the model's own folder, or remove that file from a copy of it.",
)
ONE_OPTIMIZER_ONLY = Entry(
    "checkpoint_option.one_optimizer_only",
    "{format} keeps the state of one optimizer, the job has {optimizers}",
    remedy="Write another format: `flowcheck restore --help` lists them under `--format`.",
)
FORMAT_CANNOT_HOLD = Entry(
    "checkpoint_option.format_cannot_hold",
    "format {format}: {error}",
    cause="The chosen format has no place for what this job has.",
    remedy="Choose another format: `flowcheck` holds everything.",
)
