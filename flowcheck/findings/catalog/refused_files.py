"""Files that a user names (job files, NCCL's logs, learned jobs) and that hold something else."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

IS_FOLDER = Entry(
    "text_file.is_folder",
    "is a folder, not a file",
    also=("there",),
    remedy="Name the file itself{there}.",
)
FILES_THERE = Entry(
    "text_file.files_there",
    ", such as {files}",
)
PACKED = Entry(
    "text_file.is_compressed",
    "is compressed by {program}",
    also=("command",),
    cause="The file was packed to be stored or sent; FlowCheck reads plain text.",
    remedy="Unpack it with `{command}`, and name the unpacked file.",
)
TEXT_IS_CHECKPOINT = Entry(
    "text_file.is_checkpoint",
    "is a checkpoint ({kind}), not text",
    cause="The file of another option or argument was named here.",
    remedy="Name the text file here. Checkpoints are given to `base`, `audit`, and `--template` of "
    "`restore`.",
)
IN_UTF_16 = Entry(
    "text_file.in_utf_16",
    "is text in UTF-16",
    also=("command",),
    cause="An editor of Windows, or PowerShell's `>`, wrote it so.",
    remedy="Convert it with `{command}`, and name the new file.",
)
NOT_TEXT = Entry(
    "text_file.is_binary",
    "is not text (its first bytes are {begin})",
    cause="Another file was named, such as a capture or a checkpoint.",
    remedy="Name a text file.",
)
NOT_UTF_8 = Entry(
    "text_file.not_utf_8",
    "its line {line} is not in UTF-8",
    cause="An editor wrote it in another encoding, such as Latin-1.",
    remedy="Correct that line in an editor, and save the file as UTF-8.",
)

NOT_A_LEARNED_JOB = Entry(
    "learned_job.not_one",
    "not a learned job: {error}",
    cause="The file is damaged, or of another program or release.",
    remedy="Name another one, or none: the job is learned again from its start-up.",
)
RECORD_REFUSED = Entry(
    "learned_job.record_refused",
    "{path}: {why}",
    cause="The run's record of what it learned is damaged, or of another release. Its checkpoints "
    "do not depend on it.",
    remedy="`flowcheck restore --checkpoint FOLDER --template FILE --out FILE` reads a checkpoint "
    "of the run without it; "
    "`flowcheck up JOB.toml{this_run!o}` learns the job again when the trainer starts.",
)
UNKNOWN_FORMAT = Entry(
    "learned_job.unknown_format",
    "the learned job is of format {format}; this release reads formats up to {newest}",
    remedy="Read it with the FlowCheck release that wrote it.",
)
ALGORITHM_NOT_FOLLOWED = Entry(
    "learned_job.algorithm_not_followed",
    "a learned job has a collective by {algorithm}: not followed",
    cause="A later release of FlowCheck wrote the file, or it is damaged.",
    remedy="Learn the job again, or use the release that wrote it.",
)
NEVER_BY_ALGORITHM = Entry(
    "learned_job.never_by_algorithm",
    "a learned job has a {kind} by {algorithm}, which NCCL never makes",
    cause="The file is damaged, or was changed.",
    remedy="Name another one, or none: the job is learned again from its start-up.",
)
