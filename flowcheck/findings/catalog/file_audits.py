"""Audits of the trainer's files as they are written (`flowcheck audit --watch`), and what a
difference means for the replica from then on."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# What differs, and how.

COMPARED_ROUNDED = Entry(
    "audit.compared_rounded",
    "compared rounded: each parameter of the replica, rounded to {dtype}, is the file's; this "
    "shows no bits, so that it is no audit of the replica",
)

ELEMENT_DIFFERS = Entry(
    "audit.element_differs",
    "{tensor}[{index}] is {file} in the file and {replica} in the replica",
)
TENSOR_DIFFERS = Entry(
    "audit.tensor_differs",
    "{tensor} differs (only the digests of step {step} are kept, not its elements)",
    cause="The replica had gone on when the file was read.",
    remedy="To have elements named, keep more steps whole: `[replica] keep_bytes`.",
)
SETTING_OF_FILE_DIFFERS = Entry("audit.setting_differs", "{setting} differs from the job file")
HOLDS_NANS = Entry(
    "audit.holds_nans",
    "{tensor} holds {elements} NaN in the file",
    cause="This copy was damaged, or the training diverged: compare it with the other ranks' files "
    "of the step.",
)
HOLDS_ZEROS = Entry(
    "audit.holds_zeros",
    "{tensor} is all zeros in the file",
    cause="The trainer began this state anew: it was dropped when a checkpoint was loaded, or is "
    "written before it is filled.",
    remedy="Look at how the training script loads its optimizer's state.",
)
HOLDS_OTHER_STEP = Entry(
    "audit.holds_other_step",
    "{tensor} in the file has the bits of step {step}",
    cause="The trainer saved a tensor of another step: an asynchronous save that reuses or never "
    "refills its buffer writes such files.",
    remedy="Do not resume from this file; look at how the script copies its state for the save.",
)
STATE_MISSING = Entry(
    "audit.state_missing",
    "the file has no optimizer state, but {earlier} had it",
    cause="The trainer saves or loads its optimizer's state no longer.",
    remedy="Do not resume from this file with its optimizer; look at how the script saves.",
)
STALE_FILE = Entry(
    "audit.stale_file",
    "the name says step {named}, the file holds step {step}, as {earlier} does, whose name says "
    "step {earlier_named}",
    cause="The trainer wrote one state under two names: an asynchronous save that never refills "
    "its buffer does this.",
    remedy="Do not resume from this file; look at how the script copies its state for the save.",
)

# Why a file was not compared. None of these is a pass.

THERE_BEFORE = Entry(
    "audit.there_before",
    "was there before the watch began",
    remedy="`flowcheck audit --watch DIR --existing{this_run!o}` compares such files too.",
)
NOT_WHOLE = Entry(
    "audit.not_whole",
    "is not whole ({why}) and did not change for {limit_s} s",
    cause="Its writer ended before the file was complete, or writes for longer without a pause "
    "in which the file is whole.",
    remedy="If its writer still works, the file is compared once it is whole.",
)
NO_DIRECTORY = Entry("audit.no_zip_directory", "the directory at the end of the archive is missing")
NO_METADATA = Entry("audit.no_metadata", "the folder has no .metadata")
EMPTY_FILE = Entry("audit.empty_file", "it is empty")
PART_NOT_WHOLE = Entry("audit.part_not_whole", "{file}: {why}")
FILES_MISSING = Entry(
    "audit.files_missing", "{missing} of the model's {parts} files are missing: {files}"
)
NO_LAST_FILE = Entry("audit.no_last_file", "the folder has no {file}, which {writer} writes last")
STATE_MAY_FOLLOW = Entry(
    "audit.state_may_follow",
    "its name is that of a folder of transformers' Trainer, which writes the optimizer's state "
    "after the model; a model alone is compared once it stood still for {settled_s} s",
)
SAVE_NOT_ENDED = Entry(
    "audit.save_not_ended",
    "{file} names iteration {named}: not all ranks have saved iteration {iteration}",
)
PARTS_REMOVED = Entry("audit.parts_removed", "files of it were removed")
STILL_CHANGES = Entry("audit.still_changes", "it changed between two looks")
NOT_A_CHECKPOINT = Entry("audit.not_a_checkpoint", "its beginning is that of no checkpoint")
VANISHED = Entry("audit.vanished", "was removed before it was compared")
STEP_GONE = Entry(
    "audit.step_gone",
    "is of step {step}, of which the replica has neither the state nor digests any more",
    cause="The replica keeps digests of its last steps only, or was given a later base.",
    remedy="Watch while the trainer writes: a file is compared as soon as it is whole.",
)
ROUNDED_STEP_GONE = Entry(
    "audit.rounded_step_gone",
    "its parameters are rounded to {dtype}; of step {step} only the digests are kept, which tell "
    "nothing of rounded values",
    cause="The replica had gone on when the file was read.",
    remedy="Keep more steps whole: `[replica] keep_bytes`; or save the parameters as they are.",
)
STATES_UNNAMED = Entry(
    "audit.states_unnamed",
    "its optimizer's states are under other names than its parameter groups state",
    cause="The file was written in a form in which no state shows its parameter, such as an "
    "optimizer's plain state_dict in a folder of torch.distributed.checkpoint.",
    remedy="Save what torch.distributed.checkpoint.state_dict.get_state_dict returns.",
)
STEP_NOT_REACHED_YET = Entry(
    "audit.step_not_reached",
    "is of step {step}; the replica was at step {at} and did not get there within {limit_s} s",
    cause="The replica is behind, has stopped, or the file is of another job.",
    remedy="`flowcheck status{this_run!o}` shows where the replica is and why.",
)
STEP_AHEAD = Entry("audit.step_ahead", "is of step {step}; the replica is at step {at}")
FILE_SKIPPED = Entry("audit.file_skipped", "{file}: {why}")
KILLED_THE_WATCH = Entry(
    "audit.killed_the_watch",
    "the watch ended {times} times while it read this file",
    cause="Reading it takes more memory than there is, or it is made to break its reader.",
    remedy="Look at the file by hand: `flowcheck audit FILE{this_run!o}`.",
)
CANNOT_LIST = Entry(
    "audit.cannot_list",
    "{folder}: cannot be read: {error}",
    cause="The folder does not exist yet, or may not be read by the user that watches.",
    remedy="Nothing is to be done where the trainer makes it; else correct its path or rights.",
)
TOO_MANY_ENTRIES = Entry(
    "audit.too_many_entries",
    "{folder}: more than {limit:,} entries; the rest is not looked at",
    cause="The folder is not one of checkpoints alone, or nothing ever removes old ones.",
    remedy="Watch the folder to which the trainer writes its checkpoints.",
)

NO_ROOM = Entry(
    "audit.no_room",
    "{file}: what came of it cannot be written down: no room in {folder}",
    cause="The file system of the run directory is full.",
    remedy="Make room; the file is compared again as soon as there is some.",
)

# Tainted elements of the replica that a file heals.

ELEMENTS_HEALED = Entry(
    "audit.elements_healed",
    "{elements} tainted elements of the parameters are exact again at step {at}, by the file's "
    "values of step {step}; {left} were tainted still then",
)
HEALED_BY_DIGESTS = Entry(
    "audit.healed_by_digests",
    "{elements} tainted elements of the parameters are exact at step {at} if the file is: only the "
    "digests of step {step} are kept, so that of the tainted parameters nothing could be compared; "
    "the other parameters, {compared} of {parameters}, are equal; {left} elements are tainted "
    "still",
    cause="The replica had gone on when the file was read.",
    remedy="The next file of the trainer that is compared shows these elements too. To have all "
    "that is not tainted compared first, keep more steps whole: `[replica] keep_bytes`.",
)
HEALED_UNCOUNTED = Entry(
    "audit.healed_uncounted",
    "tainted elements of the replica took the file's values of step {step}; how many is not known, "
    "as the disk had no room for the record",
)
NOT_HEALED = Entry("audit.not_healed", "heals no tainted element: {reason}")
HEAL_WITHOUT_STATE = Entry(
    "audit.heal_without_state",
    "it holds no optimizer state, and the state of tainted elements is wrong too",
    remedy="Save the optimizer's state with the model.",
)
HEAL_ROUNDED = Entry(
    "audit.heal_rounded",
    "its parameters are rounded to {dtype}: it has not the bits that were lost",
    remedy="Save the parameters in their own type too.",
)
HEAL_UNPROVED = Entry(
    "audit.heal_unproved",
    "every parameter has tainted elements at step {step}, so that nothing of the file could be "
    "compared",
    cause="Where only the digests of a step are kept, a parameter is compared whole or not at all.",
    remedy="Keep more steps whole: `[replica] keep_bytes`; or `flowcheck base FILE{this_run!o}`.",
)
ONLY_COMPARED = Entry(
    "audit.only_compared",
    "the tainted elements stay as they are: this command only compares",
    remedy="`flowcheck audit --watch DIR{this_run!o}` makes them exact by the files that appear in "
    "a folder, `flowcheck base FILE{this_run!o}` by this file.",
)

# What a difference means from then on.

NO_STEP = Entry("audit.no_step", "none")
DOUBTED = Entry(
    "audit.doubted",
    "NOT proved exact since an audit FAILED: {file} of step {step} differs first at {tensor}; the "
    "last step before that an audit found equal: {equal}",
    section="replica",
    cause="A file of the trainer differs from the replica. Equal audits of later steps do not take "
    "this back; another file of the same step that is equal shows that the first file is wrong.",
    remedy="Resume from a step that an audit found equal, or from the trainer's own file. "
    "`flowcheck base FILE{this_run!o}` goes on from the trainer's bits: only that ends the doubt.",
)
FILE_DAMAGED = Entry(
    "audit.file_damaged",
    "{file} of step {step} differs at {tensor}, but {equal} of the same step is equal to the "
    "replica: the file is wrong, not the replica",
    cause="A copy of the checkpoint was damaged, or written by another rank with another state.",
    remedy="Do not resume from this file.",
)
RESTORE_DOUBTED = Entry(
    "audit.restore_doubted",
    "step {step} is not restored: {why}",
    cause="An audit found the replica different from a file of the trainer, or the replica went on "
    "from such a file in place of its own state.",
    remedy="Restore a step that an audit found equal with `--step N`, if it is still kept, or "
    "resume from the trainer's own file. `--despite-audit` restores the step all the same; its "
    "manifest then says that it is not proved exact.",
)
LOAD_DOUBTED = Entry(
    "audit.load_doubted",
    "step {step} is not loaded: {why}",
    cause="An audit found the replica different from a file of the trainer.",
    remedy="Load a step that an audit found equal, if it is still kept, or resume from the "
    "trainer's own file. `flowcheck.load(..., despite_audit=True)` loads the step all the same.",
)

# Options.

FILE_OR_WATCH = Entry(
    "audit.file_or_watch",
    "either one checkpoint or --watch with a folder, not both",
    remedy="Leave one of the two out.",
)
ONLY_WITH_WATCH = Entry(
    "audit.only_with_watch",
    "an option of --watch",
    remedy="Leave it out, or state the folder: `flowcheck audit --watch DIR{this_run!o}`.",
)
NO_FOLDER_STATED = Entry(
    "audit.no_folder_stated",
    "a folder: the job file has no [audit]",
    remedy="State the folder: `flowcheck audit --watch DIR{this_run!o}`.",
)
WATCHED_IS_FILE = Entry(
    "audit.watched_is_file",
    "a folder: {file} is a file",
    remedy="Compare one file with `flowcheck audit {file!q}{this_run!o}`.",
)
NOTHING_TO_COMPARE = Entry(
    "audit.nothing_to_compare",
    "the replica stays before a step that lacks bytes, and waits for a checkpoint: of step {step} "
    "it has nothing of its own to compare this one with",
)
