"""What a trainer's file says of its optimizer and schedule that the job file does not state."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

# The trainer's next step differs.

GROUP_COUNT = Entry(
    "settings.group_count",
    "the file's optimizer has {file} parameter groups, the job file states {stated}",
)
SETTING_DIFFERS = Entry("settings.differs", "group {group}: {setting} = {file}, stated is {stated}")
RATE_DIFFERS = Entry(
    "settings.rate_differs", "group {group}: {setting} = {file} at step {step}, stated is {stated}"
)
OTHER_CLASS = Entry(
    "settings.other_class", "group {group}: {keys}: stated is {stated}", also=("setting",)
)
KEYS_OF = Entry("settings.keys_of", "{values}, as {classes} has")
KEYS = Entry("settings.keys", "{values}")
KEYS_WITHOUT = Entry("settings.keys_without", "{keys}, and no {missing}")
SCHEDULE_COUNT = Entry(
    "settings.schedule_count",
    "{schedule}: {setting} = {file} at step {step}, stated is {stated} "
    "(optimizer.schedule_every = {every})",
)
SCHEDULE_SETTING = Entry("settings.schedule", "{schedule}: {setting} = {file}, stated is {stated}")

# The trainer's next step is the same, or differs in the last bits.

LAST_BITS = Entry(
    "settings.last_bits",
    "group {group}: {setting} = {file}, stated is {stated}: only the last bits differ, and those "
    "of what is computed with it",
)
IMPLEMENTATION = Entry(
    "settings.implementation",
    "group {group}: its kernels are {file}, stated is {stated} (optimizer.implementation): they "
    "may round differently",
)
SCHEDULE_BEFORE_STEP = Entry(
    "settings.schedule_before_step",
    "{schedule}: {setting} = {file}, one step less than the optimizer: the file was written "
    "before scheduler.step(), and restore --template refuses it",
    remedy="Save the trainer's checkpoint after `scheduler.step()`.",
)
SCHEDULE_NOT_STATED = Entry(
    "settings.schedule_not_stated",
    "the file has a schedule ({keys}) that the job file does not state",
    remedy="State it in `[optimizer]`: `schedule`.",
)

# The file is refused.

OTHER_OPTIMIZER = Entry(
    "settings.other_optimizer",
    "{file}: its optimizer is not the one that the job file states: {differences}",
    remedy="If the file is of this job, the replica applies its steps with wrong settings: "
    "correct `[optimizer]` and follow the job anew. Otherwise name a file of this job.",
)
OTHER_GROUP_COUNT = Entry(
    "settings.other_group_count",
    "{file}: its optimizer has {found} parameter groups, the job file states {stated}",
    cause="The job file states other groups than the script makes.",
    remedy="State each group: `[[optimizer.groups]]`.",
)
