"""Text files that a user names (job files, NCCL's logs) and that hold something else."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

IS_FOLDER = Entry(
    "text_file.is_folder",
    "is a folder: name a file{there}",
    cause="The path leads to a folder.",
    remedy="Name the file itself.",
)
FILES_THERE = Entry("text_file.files_there", ", such as {files}, which are in it")
PACKED = Entry(
    "text_file.is_compressed",
    "is compressed by {program}: unpack it first: `{command}`",
    cause="The file was packed to be stored or sent; FlowCheck reads plain text.",
    remedy="Run the command of the sentence, and name the unpacked file.",
)
IN_UTF_16 = Entry(
    "text_file.in_utf_16",
    "is text in UTF-16: convert it first: `{command}`",
    cause="An editor of Windows, or PowerShell's `>`, wrote it so.",
    remedy="Run the command of the sentence, and name the new file.",
)
NOT_TEXT = Entry(
    "text_file.is_binary",
    "is not text (its first bytes are {begin}): name a text file",
    cause="Another file was named, such as a capture or a checkpoint.",
    remedy="Correct the path.",
)
NOT_UTF_8 = Entry(
    "text_file.not_utf_8",
    "its line {line} is not in UTF-8: save the file as UTF-8",
    cause="An editor wrote it in another encoding, such as Latin-1.",
    remedy="Correct that line in an editor, and save the file as UTF-8.",
)
