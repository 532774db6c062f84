"""How a command that root starts gives up root's rights, before it reads what it works on.

The very command is run again as the chain's user, without a capability and with no way back, and
all that a job file names is imported by that one alone. Where frames are to come from an interface
or a card, a process that only starts captures (capture_starter.py) is left beside it. What root has
to do, it does before: folders are made or handed over, what lies in private folders is shown
(mount_namespace.py).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
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
from flowcheck.private_files import trust
from flowcheck.replica.user_code import FORBIDDEN
from flowcheck.stages.privilege import (
    folder_ownership,
    job_file_paths,
    mount_namespace,
    privilege_syscalls,
)
from flowcheck.stages.privilege.capture_capabilities import capture_rights
from flowcheck.stages.privilege.capture_starter import CHANNEL, PYTHON_COMMAND, SOURCES, STAGE
from flowcheck.stages.privilege.capture_starter_client import inherit
from flowcheck.stages.privilege.mount_namespace import PathNeed, PathUse, expose, inaccessible
from flowcheck.stages.privilege.output_delivery import OutputDelivery, fork_writer, is_picture
from flowcheck.stages.run_directory.run_dir_checks import is_run, refuse_special_files
from flowcheck.stages.run_directory.service_account import KEY, ROOT, Account, account, account_of

if TYPE_CHECKING:  # numpy stays out
    from flowcheck.vault.overwrite_guard import OutputTarget

PROGRAM = "flowcheck"
"""The script, or the module, that may be run again; another script that calls this as a library is
another's program."""
VALUED = ("-W", "-X")
"""Options of the interpreter that a word follows."""
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Code that torch compiled lies there and is loaded again: by default in a folder below /tmp whose
name anybody knows (torch/_inductor/runtime/cache_dir_utils.py)."""


@dataclass
class Command:
    """What the process that runs a verb knows of its own rights."""

    is_program: bool = False
    """It is the command that somebody started, and may be replaced; not a library in a process of
    others'."""
    notes: list[Finding] = field(default_factory=list)
    """What the operator should know."""


COMMAND_HERE = Command()


def note_program() -> None:
    """Called by the command line, before any verb."""
    COMMAND_HERE.is_program = _program(sys.orig_argv[1:]) == PROGRAM
    inherit()


def _program(words: Sequence[str]) -> str:
    """What an interpreter with these arguments runs: a script's name, or a module's."""
    left = iter(words)
    for word in left:
        if word in VALUED:
            next(left, "")
        elif word == "-m":
            return next(left, "")
        elif not word.startswith("-"):
            return Path(word).name
    return ""


def kept_rights_notes() -> tuple[Finding, ...]:
    """Why rights could not be given up."""
    return tuple(COMMAND_HERE.notes)


def _nothing_to_do() -> bool:
    return not COMMAND_HERE.is_program or not privilege_syscalls.rights_of().above_ordinary


def for_chain(
    job: Path | None,
    run: Path | None,
    *,
    files: Sequence[Path] = (),
    out: Path | None = None,
    live: bool = False,
) -> None:
    """Of a verb that runs a chain. job: its job file; run: its run directory, in place of the job
    file's; None where that is a temporary one; files: it reads; out: a folder it writes in; live:
    its sources are the job file's, so that its captures may need rights."""
    if _nothing_to_do():
        return
    sources = load_job(job).source if live and job is not None else ()
    tree = job_file_paths.job_file_tables(job)
    if live and run is None:
        run = Path(str(tree.get("run", "/run/flowcheck/job")))
    stated = _stated(tree)
    if stated == ROOT:
        COMMAND_HERE.notes.append(ROOT_STATED())
        if run is not None and run.is_dir():
            os.chown(run, 0, 0)
        return
    outputs = [*job_file_paths.folders_of_job(job, live=live), *([out] if out is not None else [])]
    needs = [
        *job_file_paths.of_job(job),
        *(n for file in files for n in job_file_paths.of_file(file)),
    ]

    def prepared(who: Account) -> _Prepared:
        places = [*([run] if run is not None else []), *outputs]
        roots = {p.absolute() for p in places if not p.exists() or p.stat().st_uid == 0}
        own = folder_ownership.run_folder(run, who) if run is not None else []
        written = [n for folder in outputs for n in folder_ownership.output_folder(folder, who)]
        if run is not None:
            mount_namespace.remember_shown_paths(run, [*needs, *written])
        found = [*own, *written]
        return _Prepared(found, [n.path for n in found if n.path in roots])

    _descend(stated, account, needs, prepared, _starts(sources, run))


def for_code(
    *texts: str | None,
    files: Sequence[Path] = (),
    job: Path | None = None,
    picture: Path | None = None,
) -> None:
    """Of a verb that imports code of the user's, or reads captures, and runs no chain. texts: where
    code lies, as it is given; files: it reads; picture: it writes."""
    if _nothing_to_do():
        return
    stated = _stated(job_file_paths.job_file_tables(job))
    if stated == ROOT:
        return
    needs = [n for text in texts if text is not None for n in job_file_paths.of_text(text)]
    needs += [
        *job_file_paths.of_job(job),
        *(n for file in files for n in job_file_paths.of_file(file)),
    ]
    who = account(stated) if os.geteuid() == 0 else _same()
    folder = Path() if picture is None else picture.absolute().parent
    if picture is None or os.geteuid() != 0 or _written_in_place(who, picture):
        return _descend(stated, lambda _: who, needs)
    force = not picture.exists() or is_picture(picture)
    needs += [] if force else job_file_paths.of_file(picture)  # which is refused
    outbox = _sent(who, picture, force=force)
    needs += [PathNeed(folder, PathUse.PLACE), PathNeed(outbox.staging_folder, PathUse.OWN)]
    _descend(stated, lambda _: who, needs, outbox=outbox)


def _written_in_place(who: Account, out: Path) -> bool:
    """The account may write it itself, or it is a terminal, a pipe, /dev/stdout; or there is no
    such folder, which the writer reports."""
    special = out.exists() and not (out.is_file() or out.is_dir())
    folder = out.absolute().parent
    return special or not folder.is_dir() or _is_for(who, folder)


def _sent(who: Account, out: Path, *, force: bool) -> OutputDelivery:
    """Where the account writes it; in the process that does. Root waits in another one."""
    outbox = OutputDelivery.make(who, out, force=force)
    fork_writer(outbox)
    return outbox


def for_run(run: Path, *files: Path | None) -> None:
    """Of a verb that works on a run directory: as whom that belongs to. files: it reads."""
    if _nothing_to_do():
        return
    owner = _owner(run)
    if owner == 0:
        return  # the chain there runs as root, which is where that was said
    if owner is None:
        return forbid_user_code(NO_RUN_DIRECTORY())
    needs = [n for file in files if file is not None for n in job_file_paths.of_file(file)]
    needs += [PathNeed(run.absolute(), PathUse.OWN), *mount_namespace.remembered_paths(run)]
    _descend(None, lambda _: account_of(owner), needs, run=run)


def for_output(
    run: Path,
    target: OutputTarget,
    *files: Path | None,
    checkpoint: Path | None = None,
    elsewhere: bool = False,
) -> None:
    """Of a verb that writes a step somewhere: as whom the run directory belongs to. Where that one
    may not write, root puts the result there. checkpoint: the step, of the run that it lies in;
    elsewhere: of none, so that no chain said that it runs as root. Raises ConfigError where
    something lies there that it may not take the place of."""
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
    if os.geteuid() != 0 or _is_for(who, place):
        return for_run(run, *files)
    from flowcheck.vault.overwrite_guard import by_either

    replace(target, listed=by_either).check()
    needs = [n for file in files if file is not None for n in job_file_paths.of_file(file)]
    needs += [PathNeed(run.absolute(), PathUse.OWN), *mount_namespace.remembered_paths(run)]
    outbox = _sent(who, out, force=target.force or os.path.lexists(out))
    needs += [PathNeed(place, PathUse.PLACE), PathNeed(outbox.staging_folder, PathUse.OWN)]
    _descend(None, lambda _: who, needs, run=run, outbox=outbox)


def keep_root_to_read(run: Path) -> None:
    """Of a verb that keeps root's rights where root runs it, and shows the run directory of any
    user: what lies there is looked at, and no code of the user's is run."""
    forbid_user_code(READS_ONLY())
    if os.geteuid() == 0 and (owner := _owner(run)):
        trust(owner)
        refuse_special_files(run)


def for_stage(name: str, run: Path, number: int) -> None:
    """Of one stage that is started by itself."""
    if _nothing_to_do() or SOURCES in os.environ:
        return
    owner = _owner(run)
    if not owner:
        return
    rights: frozenset[int] = frozenset()
    if name == STAGE:
        from flowcheck.stages.run_directory.run_dir import RunDir

        sources = RunDir(run).settings().source
        rights = capture_rights(sources[number : number + 1])
    needs = [PathNeed(run.absolute(), PathUse.OWN), *mount_namespace.remembered_paths(run)]
    _descend(None, lambda _: account_of(owner), needs, run=run, rights=rights)


def forbid_user_code(why: Finding | Exception) -> None:
    """Code of the user's is refused from now on, here and in processes that this one starts."""
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
    """What root made for the process that comes in its place."""

    needs: list[PathNeed] = field(default_factory=list)
    handed: list[Path] = field(default_factory=list)
    """Folders of root's until now."""


@dataclass(frozen=True)
class _Starts:
    """What a process that starts captures is given."""

    sources: tuple[SourceConfig, ...]
    run: Path
    rights: frozenset[int]


def _starts(sources: Sequence[SourceConfig], run: Path | None) -> _Starts | None:
    rights = capture_rights(sources)
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
    """Does not return, unless rights have to be kept: then notes say why. run: somebody's, whose
    chain may be running. Raises ConfigError where the job file states a user, StateError where a
    `run` is given, and it cannot be that one."""
    who = who_of(stated) if os.geteuid() == 0 else _same()
    if who.is_root:
        return
    everything = [*needs, *job_file_paths.of_python(), PathNeed(Path.cwd(), PathUse.PLACE)]
    made = _Prepared()
    try:
        if os.geteuid() == 0:
            folder_ownership.private_folders(who)
            made = prepared(who)
            everything += made.needs
            expose(who, everything)
            if outbox is not None:
                privilege_syscalls.own_mounts()
                outbox.take_place()
            os.chdir(Path.cwd())
    except (FlowCheckError, OSError) as error:
        if stated is not None:
            raise ConfigError(KEY, stated, USER_REFUSED(error)) from error
        for folder in made.handed:  # the chain runs as root then
            if folder.stat().st_uid == who.user:
                os.chown(folder, 0, 0)
        if run is not None:
            raise StateError(OWNER_REFUSED(run=run, reason=error)) from error
        COMMAND_HERE.notes.append(RAN_AS_ROOT(error))
        return forbid_user_code(error)
    _run_again(who, starts, rights)


def _same() -> Account:
    """This user, who was given capabilities and no other rights (systemd's AmbientCapabilities)."""
    mine = account_of(os.geteuid())
    return Account(mine.name, os.geteuid(), os.getegid(), tuple(os.getgroups()), mine.home)


def _run_again(who: Account, starts: _Starts | None, rights: frozenset[int]) -> None:
    own = os.environ | {"HOME": str(who.home), "USER": who.name, "LOGNAME": who.name}
    own.pop(CHANNEL, None)
    for name in (COMPILED, "TMPDIR", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        if name in own and not _is_for(who, Path(own[name])):
            del own[name]
    own.setdefault(COMPILED, str(who.home / "torchinductor"))
    if starts is not None:
        own[CHANNEL] = str(_start_starter(who, starts, os.environ | own))
    sys.stdout.flush()
    sys.stderr.flush()
    privilege_syscalls.become_user(who.user, who.group, who.groups, rights)
    os.execve(sys.executable, [*PYTHON_COMMAND, *sys.argv[1:]], own)


def _is_for(who: Account, folder: Path) -> bool:
    """Whether the account may write there; for the environment of a command, never an error."""
    return folder.is_dir() and not inaccessible(who, [PathNeed(folder, PathUse.OWN)])


def _start_starter(who: Account, starts: _Starts, environment: dict[str, str]) -> int:
    """The descriptor that it listens to."""
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
            os.execve(sys.executable, [*words, *told], environment | {SOURCES: sources})
        except (OSError, StateError) as error:
            print(f"captures cannot be started: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(2)
    its.close()
    mine.set_inheritable(True)
    return mine.detach()
