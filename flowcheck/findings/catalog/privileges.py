"""Root's rights: why a command kept them, and what refuses it without them."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

RAN_AS_ROOT = Entry(
    "privilege.ran_as_root",
    "this command keeps root's rights ({reason}), so it runs none of the user's code (optimizer "
    "factories, schedules)",
    remedy='Give that user access to what is named, or state `user = "NAME"` in `[services]` of '
    'the job file; `user = "root"` there runs all as root.',
)
ROOT_STATED = Entry(
    "privilege.root_stated",
    "everything runs as root, the user's code (optimizer factories, schedules) too: [services] "
    'user = "root"',
)
USER_CODE_REFUSED = Entry(
    "privilege.user_code_refused",
    "FlowCheck never runs the user's code (optimizer factories, schedules) as root, and this "
    "command kept root's rights: {reason}",
)
USER_REFUSED = Entry("privilege.user_refused", "this chain cannot run as that user: {reason}")
OWNER_REFUSED = Entry(
    "privilege.owner_refused",
    "a command runs as the user that its run directory {run} belongs to, and cannot here: {reason}",
)
NO_RUN_DIRECTORY = Entry("privilege.no_run_directory", "there is no run directory yet")
NO_RUN_NAMED = Entry(
    "privilege.no_run_named", "no run directory of an ordinary user is named (--run DIR)"
)
READS_ONLY = Entry("privilege.reads_only", "it only reads")
RIGHTS_LEFT = Entry(
    "privilege.rights_left",
    "rights could not be given up: {left} is left, wanted user {user}",
    cause="The kernel did not take away all rights, as in some containers.",
    remedy='Run it outside of the container, or state `user = "root"` in `[services]` to keep '
    "them.",
)
NO_ACCESS = Entry(
    "privilege.no_access",
    "{user} cannot {needs}",
    remedy="Give that user the permission, or state another `user` in the job file's `[services]`.",
)
NO_ACCESS_SHOWN = Entry(
    "privilege.no_access_shown",
    "{user} cannot {needs} ({error})",
    remedy="Give that user the permission, or state another `user` in the job file's `[services]`.",
)
NEED = Entry("privilege.need", "{use} {path}")
TOO_MANY_FILES = Entry(
    "privilege.too_many_files",
    "{path} holds too many files to show them to the chain's user",
    cause="Each file is shown to the stages by a mount of its own.",
    remedy='Name a folder that holds only what the job needs, or state `user = "root"` in '
    "`[services]`.",
)
NO_SCRATCH_FOLDER = Entry(
    "privilege.no_scratch_folder",
    "showing private folders to the chain's user needs an unused folder, and none of {folders} "
    "is usable",
    cause="The stages see private folders through an unused folder, and each of those is taken "
    "or missing.",
    remedy='Make one of them, empty, or state `user = "root"` in `[services]`.',
)
OUTPUT_NOT_WRITTEN = Entry(
    "privilege.output_not_written",
    "{path} was not written by the process that should write it",
    cause="A process without rights failed to write its result.",
    remedy="Run the command again; if this stays, read the logs of the run.",
)
NO_SUCH_USER = Entry(
    "privilege.no_such_user",
    "there is no such user: scripts/node/install-node makes flowcheck, and useradd --system "
    'another one; "root" keeps all rights',
    cause="The user that `[services] user` names is not on this machine.",
    remedy="Make the user, or name one that exists (`getent passwd`).",
)
