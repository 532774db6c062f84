"""Drops root's privileges when root starts a command, before the command reads its inputs.

The same command is run again as the chain's user, without capabilities and without a way back; only
this second process imports code that a job file names. If frames come from an interface or a NIC, a
process that only starts captures (capture_starter.py) keeps the capabilities for them. Root's tasks
are done before: folders are created or given to the user, and files in private folders are made
visible to the user (mount_namespace.py).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flowcheck.config import SourceConfig, load_job
from flowcheck.errors import ConfigError, FlowCheckError, StateError
from flowcheck.findings.catalog.privileges import (
    NO_RUN_DIRECTORY,
    NO_RUN_NAMED,
    OWNER_REFUSED,
    RAN_AS_ROOT,
    READS_ONLY,
    ROOT_STATED,
    USER_CODE_REFUSED,
    USER_REFUSED,
)
from flowcheck.findings.finding import Finding
from flowcheck.findings.named_run import DEFAULT_RUN
from flowcheck.private_files import trust_user
from flowcheck.replica.user_code import FORBIDDEN
from flowcheck.stages.privilege import (
    folder_ownership,
    job_file_paths,
    mount_namespace,
    privilege_syscalls,
)
from flowcheck.stages.privilege.capture_capabilities import capture_capabilities_of
from flowcheck.stages.privilege.capture_starter import (
    PYTHON_COMMAND,
    SOURCES_VARIABLE,
    STAGE,
    STARTER_SOCKET_VARIABLE,
)
from flowcheck.stages.privilege.capture_starter_client import inherit
from flowcheck.stages.privilege.mount_namespace import (
    PathNeed,
    PathUse,
    expose_paths,
    inaccessible_needs,
)
from flowcheck.stages.privilege.output_delivery import OutputDelivery, fork_writer, is_picture
from flowcheck.stages.run_directory.run_dir_checks import is_run, refuse_special_files
from flowcheck.stages.run_directory.service_account import KEY, ROOT, Account, account, account_of

if TYPE_CHECKING:  # numpy stays out
    from flowcheck.vault.overwrite_guard import OutputTarget

PROGRAM = "flowcheck"
"""Name of the script or module that may be run again. Another script, which uses FlowCheck as a
library, is not."""
INTERPRETER_OPTIONS_WITH_VALUE = ("-W", "-X")
"""Options of the Python interpreter that take a value as the next word."""
COMPILE_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Variable that names the folder from which torch loads code it compiled before. By default the
folder is below /tmp under a name that anybody can guess
(torch/_inductor/runtime/cache_dir_utils.py)."""


@dataclass
class Command:
    """State of the process that runs a command, concerning its privileges."""

    is_program: bool = False
    """True: this process is the command line and may be replaced. False: FlowCheck is used as a
    library in another program."""
    notes: list[Finding] = field(default_factory=list)
    """Findings for the operator."""


COMMAND_HERE = Command()


def note_program() -> None:
    """Notes whether this process is the command line. The command line calls it first."""
    COMMAND_HERE.is_program = is_program()
    inherit()


def is_program() -> bool:
    """Whether this process was started as the command line, not as a program that imports it."""
    return _program(sys.orig_argv[1:]) == PROGRAM


def _program(words: Sequence[str]) -> str:
    """The name of the script or module that the Python interpreter runs with these arguments."""
    left = iter(words)
    for word in left:
        if word in INTERPRETER_OPTIONS_WITH_VALUE:
            next(left, "")
        elif word == "-m":
            return next(left, "")
        elif not word.startswith("-"):
            return Path(word).name
    return ""


def kept_rights_notes() -> tuple[Finding, ...]:
    """Findings that say why privileges could not be dropped."""
    return tuple(COMMAND_HERE.notes)


def _nothing_to_do() -> bool:
    return not COMMAND_HERE.is_program or not privilege_syscalls.rights_of().above_ordinary


def drop_for_chain(
    job: Path | None,
    run: Path | None,
    *,
    files: Sequence[Path] = (),
    out: Path | None = None,
    live: bool = False,
) -> None:
    """Drops privileges for a command that runs a chain. Does not return if it drops them: the
    command then runs again.

    job: the job file. run: the run directory, in place of the one in the job file; None: a
    temporary one, if not `live`. files: further files to read. out: a folder to write to. live:
    frames come from the sources in the job file, whose captures may need capabilities.
    """
    if _nothing_to_do():
        return
    sources = load_job(job).source if live and job is not None else ()
    tree = job_file_paths.job_file_tables(job)
    if live and run is None:
        run = Path(str(tree.get("run", DEFAULT_RUN)))
    stated = _stated(tree)
    if stated == ROOT:
        COMMAND_HERE.notes.append(ROOT_STATED())
        if run is not None and run.is_dir():
            os.chown(run, 0, 0)
        return
    outputs = [*job_file_paths.folders_of_job(job, live=live), *([out] if out is not None else [])]
    needs = [
        *job_file_paths.needs_of_job_file(job),
        *(n for file in files for n in job_file_paths.needs_of_file(file)),
    ]

    def prepared(who: Account) -> _Prepared:
        places = [*([run] if run is not None else []), *outputs]
        roots = {p.absolute() for p in places if not p.exists() or p.stat().st_uid == 0}
        try:
            own = folder_ownership.hand_over_run_folder(run, who) if run is not None else []
            written = [
                n
                for folder in outputs
                for n in folder_ownership.hand_over_output_folder(folder, who)
            ]
            if run is not None:
                mount_namespace.remember_shown_paths(run, [*needs, *written])
        except BaseException:
            _take_back(roots, who)
            raise
        found = [*own, *written]
        return _Prepared(found, [n.path for n in found if n.path in roots])

    _descend(stated, account, needs, prepared, _starts(sources, run))


def drop_for_user_code(
    *texts: str | None,
    files: Sequence[Path] = (),
    job: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Drops privileges for a command that imports the user's code or reads captures and runs no
    chain. texts: references to code, such as file.py:function. files: files to read. job: the job
    file. picture: an SVG file to write."""
    if _nothing_to_do():
        return
    stated = _stated(job_file_paths.job_file_tables(job))
    if stated == ROOT:
        return
    needs = [n for text in texts if text is not None for n in job_file_paths.needs_of_setting(text)]
    needs += [
        *job_file_paths.needs_of_job_file(job),
        *(n for file in files for n in job_file_paths.needs_of_file(file)),
    ]
    who = account(stated) if os.geteuid() == 0 else _same()
    folder = Path() if picture is None else picture.absolute().parent
    if picture is None or os.geteuid() != 0 or _written_in_place(who, picture):
        return _descend(stated, lambda _: who, needs)
    force = not picture.exists() or is_picture(picture)
    needs += [] if force else job_file_paths.needs_of_file(picture)  # which is refused
    outbox = _sent(who, picture, force=force)
    needs += [PathNeed(folder, PathUse.PLACE), *_need_of(outbox, who)]
    _descend(stated, lambda _: who, needs, outbox=outbox)


def _written_in_place(who: Account, out: Path) -> bool:
    """Whether the process that runs as `who` writes `out` directly: the account may write to the
    folder and nobody else's output is there, or `out` is a terminal, a pipe or /dev/stdout, or the
    folder does not exist, which the writer reports."""
    special = out.exists() and not (out.is_file() or out.is_dir())
    folder = out.absolute().parent
    return special or not folder.is_dir() or (_is_for(who, folder) and not _is_roots(out))


def _is_roots(out: Path) -> bool:
    """Whether root's earlier output is there, or its manifest: an account that may write beside it
    may still neither read nor, in a folder as /tmp, replace it."""
    from flowcheck.replica.checkpoint_files.manifest import manifest_beside

    there = [path for path in (out, manifest_beside(out)) if os.path.lexists(path)]
    return any(path.lstat().st_uid == 0 for path in there)


def _sent(who: Account, out: Path, *, force: bool) -> OutputDelivery:
    """Forks, and returns in the process that writes the output as `who`. Root's process waits for
    it and moves the output to its place."""
    outbox = OutputDelivery.make(who, out, force=force)
    fork_writer(outbox)
    return outbox


def _need_of(outbox: OutputDelivery, who: Account) -> list[PathNeed]:
    """Where the account may write anyway nothing is shown: the path may lead elsewhere by now."""
    staging = outbox.staging_folder
    return [] if _is_for(who, staging.parent) else [PathNeed(staging, PathUse.OWN)]


def drop_for_run(run: Path, *files: Path | None) -> None:
    """Drops privileges for a command that works on a run directory: it runs as the directory's
    owner. files: further files to read."""
    if _nothing_to_do():
        return
    owner = _owner(run)
    if owner == 0:
        return  # the chain there runs as root, which is where that was said
    if owner is None:
        return forbid_user_code(NO_RUN_DIRECTORY())
    needs = [n for file in files if file is not None for n in job_file_paths.needs_of_file(file)]
    needs += [PathNeed(run.absolute(), PathUse.OWN), *mount_namespace.remembered_paths(run)]
    _descend(None, lambda _: account_of(owner), needs, run=run)


def drop_for_output(
    run: Path,
    target: OutputTarget,
    *files: Path | None,
    checkpoint: Path | None = None,
    elsewhere: bool = False,
) -> None:
    """Drops privileges for a command that writes a step: it runs as the owner of the run directory.
    If the owner may not write to the target, or root's earlier output is there, root moves the
    result there.

    checkpoint: the step is read from this folder; its run directory then counts, if it lies in one.
    elsewhere: the step comes from no run directory. Raises ConfigError if the target may not be
    replaced.
    """
    if _nothing_to_do():
        return
    foreign = elsewhere or checkpoint is not None
    around = checkpoint.absolute().parents if checkpoint is not None else ()
    for above in around:
        if is_run(above):
            run, foreign = above, elsewhere
    if not (owner := _owner(run)):
        if owner is None or foreign:
            forbid_user_code(NO_RUN_NAMED())
        return
    out, who = target.path, account_of(owner)
    place = out.absolute().parent
    if os.geteuid() != 0 or (_is_for(who, place) and not _is_roots(out)):
        return drop_for_run(run, *files)
    from flowcheck.vault.overwrite_guard import files_by_manifest_and_index

    replace(target, listed=files_by_manifest_and_index).check()
    needs = [n for file in files if file is not None for n in job_file_paths.needs_of_file(file)]
    needs += [PathNeed(run.absolute(), PathUse.OWN), *mount_namespace.remembered_paths(run)]
    outbox = _sent(who, out, force=target.force or os.path.lexists(out))
    needs += [PathNeed(place, PathUse.PLACE), *_need_of(outbox, who)]
    _descend(None, lambda _: who, needs, run=run, outbox=outbox)


def keep_root_to_read(run: Path) -> None:
    """For a command that keeps root's privileges and only displays a run directory of any user.
    From now on no code of the user's is run, and root trusts the directory's owner. Raises
    ConfigError for special files in the directory."""
    forbid_user_code(READS_ONLY())
    if os.geteuid() == 0 and (owner := _owner(run)):
        trust_user(owner)
        refuse_special_files(run)


def drop_for_stage(name: str, run: Path, number: int) -> None:
    """Drops privileges for a single stage that is started by hand."""
    if _nothing_to_do() or SOURCES_VARIABLE in os.environ:
        return
    owner = _owner(run)
    if not owner:
        return
    rights: frozenset[int] = frozenset()
    if name == STAGE:
        from flowcheck.stages.run_directory.run_dir import RunDir

        sources = RunDir(run).settings().source
        rights = capture_capabilities_of(sources[number : number + 1])
    needs = [PathNeed(run.absolute(), PathUse.OWN), *mount_namespace.remembered_paths(run)]
    _descend(None, lambda _: account_of(owner), needs, run=run, rights=rights)


def drop_for_watch(sources: Sequence[SourceConfig], runs: Sequence[Path]) -> None:
    """Drops privileges for a command that captures from these sources itself and runs no chain: it
    keeps what captures of them need. `give_up_capabilities` takes that too, once they are open.

    runs: run directories of chains whose counters are read; it runs as the user of the first.
    """
    if _nothing_to_do():
        return
    rights = capture_capabilities_of(sources)
    if not privilege_syscalls.rights_of().permitted & ~privilege_syscalls.capability_mask(rights):
        return
    files = [Path(source.file) for source in sources if source.file is not None]
    needs = [n for file in files for n in job_file_paths.needs_of_file(file)]
    owner = next(filter(None, map(_owner, runs)), None)
    for run in runs if owner is not None else ():
        needs += [PathNeed(run.absolute(), PathUse.OWN), *mount_namespace.remembered_paths(run)]
    _descend(None, account if owner is None else lambda _: account_of(owner), needs, rights=rights)


def give_up_capabilities() -> None:
    """Takes all capabilities from this process's calling thread and those that it starts. For the
    command line alone: another program that uses FlowCheck keeps its own."""
    if COMMAND_HERE.is_program and os.geteuid() != 0:
        privilege_syscalls.become_user(os.geteuid(), os.getegid(), os.getgroups(), keep=frozenset())


def forbid_user_code(why: Finding | Exception) -> None:
    """Makes this process and its children refuse to run the user's code from now on, if this
    process has more privileges than an ordinary user's. why: the reason in the error."""
    if not _nothing_to_do():
        os.environ[FORBIDDEN] = msgspec.json.encode(USER_CODE_REFUSED(why)).decode()


def _owner(run: Path) -> int | None:
    try:
        return run.stat().st_uid
    except OSError:
        return None


def _stated(tree: dict[str, object]) -> str | None:
    table = tree.get("services")
    user = table.get("user") if isinstance(table, dict) else None
    return str(user) if user is not None else None


@dataclass(frozen=True)
class _Prepared:
    """Folders that root prepared for the process that runs as the chain's user."""

    needs: list[PathNeed] = field(default_factory=list)
    handed: list[Path] = field(default_factory=list)
    """Folders that belonged to root before or did not exist."""


@dataclass(frozen=True)
class _Starts:
    """The arguments of the process that starts captures."""

    sources: tuple[SourceConfig, ...]
    run: Path
    rights: frozenset[int]


def _starts(sources: Sequence[SourceConfig], run: Path | None) -> _Starts | None:
    rights = capture_capabilities_of(sources)
    if not rights or run is None:
        return None
    return _Starts(tuple(sources), run, rights)


def _descend(
    stated: str | None,
    who_of: Callable[[str | None], Account],
    needs: Sequence[PathNeed],
    prepared: Callable[[Account], _Prepared] = lambda _: _Prepared(),
    starts: _Starts | None = None,
    *,
    run: Path | None = None,
    rights: frozenset[int] = frozenset(),
    outbox: OutputDelivery | None = None,
) -> None:
    """Runs the command again as another user. Returns only if privileges have to be kept; notes
    then say why.

    stated: the user in the job file. who_of: gives the account for it. needs: paths that the
    account must reach. prepared: root's preparation. run: the run directory whose owner the account
    is. Raises, if the command cannot run as the account, ConfigError where the job file states the
    user and StateError where `run` is given.
    """
    who = who_of(stated) if os.geteuid() == 0 else _same()
    if who.is_root:
        return
    everything = [*needs, *job_file_paths.needs_of_python(), PathNeed(Path.cwd(), PathUse.PLACE)]
    made = _Prepared()
    try:
        if os.geteuid() == 0:
            folder_ownership.create_private_folders(who)
            made = prepared(who)
            everything += made.needs
            expose_paths(who, everything)
            if outbox is not None:
                privilege_syscalls.own_mounts()
                outbox.take_place()
            os.chdir(Path.cwd())
    except (FlowCheckError, OSError) as error:
        if stated is not None:
            raise ConfigError(KEY, stated, USER_REFUSED(error)) from error
        _take_back(made.handed, who)
        if run is not None:
            raise StateError(OWNER_REFUSED(run=run, reason=error)) from error
        COMMAND_HERE.notes.append(RAN_AS_ROOT(error))
        return forbid_user_code(error)
    _run_again(who, starts, rights)


def _take_back(handed: Iterable[Path], who: Account) -> None:
    """Gives folders back to root that were handed over, as the chain runs as root then: the stages
    of a chain run as the owner of its run directory, who may not read what root writes there."""
    for folder in handed:
        if folder.is_dir() and folder.stat().st_uid == who.user:
            os.chown(folder, 0, 0)


def _same() -> Account:
    """The account of this process's user, who has capabilities but is not root (systemd's
    AmbientCapabilities)."""
    mine = account_of(os.geteuid())
    return Account(mine.name, os.geteuid(), os.getegid(), tuple(os.getgroups()), mine.home)


def _run_again(who: Account, starts: _Starts | None, rights: frozenset[int]) -> None:
    own = os.environ | {"HOME": str(who.home), "USER": who.name, "LOGNAME": who.name}
    own.pop(STARTER_SOCKET_VARIABLE, None)
    for name in (
        COMPILE_CACHE_VARIABLE,
        "TMPDIR",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
    ):
        if name in own and not _is_for(who, Path(own[name])):
            del own[name]
    own.setdefault(COMPILE_CACHE_VARIABLE, str(who.home / "torchinductor"))
    if starts is not None:
        own[STARTER_SOCKET_VARIABLE] = str(_start_starter(who, starts, os.environ | own))
    sys.stdout.flush()
    sys.stderr.flush()
    privilege_syscalls.become_user(who.user, who.group, who.groups, rights)
    os.execve(sys.executable, [*PYTHON_COMMAND, *sys.argv[1:]], own)


def _is_for(who: Account, folder: Path) -> bool:
    """Whether `folder` is a folder to which the account may write."""
    return folder.is_dir() and not inaccessible_needs(who, [PathNeed(folder, PathUse.OWN)])


def _start_starter(who: Account, starts: _Starts, environment: dict[str, str]) -> int:
    """Starts the process that starts captures. Returns the descriptor of the supervisor's end of
    its socket."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        try:
            mine.close()
            os.setsid()
            its.set_inheritable(True)
            sources = msgspec.json.encode(starts.sources).decode()
            privilege_syscalls.become_user(who.user, who.group, who.groups, starts.rights)
            words = [*PYTHON_COMMAND[:-1], "flowcheck.stages.privilege.capture_starter"]
            told = [str(its.fileno()), str(starts.run.absolute()), str(parent)]
            os.execve(sys.executable, [*words, *told], environment | {SOURCES_VARIABLE: sources})
        except (OSError, StateError) as error:
            print(f"captures cannot be started: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(2)
    its.close()
    mine.set_inheritable(True)
    return mine.detach()
