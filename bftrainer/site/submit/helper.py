"""The submit helper: the only part of bftrainer that runs as root (docs/adr/0030-many-users.md).

Reads one request of the daemon from standard input, checks it, and submits or cancels a pilot with
the rights of the user whose pilot it is. Started for each request by systemd (standard input is the
connection) or through sudo; it is one file, imports the standard library only and must be run
isolated (``python -IS``: nothing of site-packages is run). A file that only root can write limits
what it may do. Answers with one JSON object: the end of the batch system's command, or the reason
for not running it.
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import re
import resource
import secrets
import select
import shlex
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import syslog
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

CONFIG = Path("/etc/bftrainer/submit-helper.json")
MOST_BYTES = 256 * 1024  # of a request and of an answer
MOST_WORDS, MOST_TROUBLE = 32 * 1024, 4096  # characters of a command's two outputs that are kept
MOST_PRINTED = 1 << 20  # bytes of both; then the command is killed
# Bytes of addresses of each process; every thread of sbatch reserves 128 MiB.
MOST_MEMORY = 1 << 30
MOST_JOBS = 200  # of one request
LIMIT_S = 30.0  # for all of it
SPARE_S = 2.0  # of that, to answer
LINGER_S = 1.0  # of a command that has said all that is wanted
LOOK_S = 0.02  # between two looks at a command
FILES = {"agent.json": 32 * 1024, "agent.key": 4096}  # of a pilot, and their greatest sizes

# With a GraceTime Slurm tells steps of a preemption at once, but the batch script only at its end.
# So a step that does nothing else passes the notice on, and ends its sleep: who holds the output of
# a step that has ended keeps the node for 60 s. The agent can not be a step: Slurm signals all
# processes of one, workers included.
HERALD = """\
srun --overlap --nodes=1 --ntasks=1 --mem=0 --input=none --quiet --output=/dev/null \\
    sh -c 'trap "kill -USR1 $1 \\$!; exit 0" TERM; while :; do sleep 3600 & wait; done' herald $$ &
"""
GRACE = "BFT_GRACE_S"  # how long the batch system waits before it ends a pilot
# A request of which sbatch says this may have been carried out all the same (slurm_errno.h).
UNHEARD = ("Zero Bytes were transmitted", "Socket timed out")
# Accounts of services that a site may have numbered like people. Debian's are 60000 to 64999.
SERVICES = frozenset(
    (
        *("apache", "bftrainer", "ldap", "lsfadmin", "mongodb", "munge", "mysql", "nfsnobody"),
        *("nobody", "nslcd", "postgres", "prometheus", "slurm", "slurmdbd", "slurmrestd", "sssd"),
        *("tomcat", "www-data"),
    )
)
# Numbers with which nobody logs in: Debian's for services, systemd's for services without an
# account and for foreign files (systemd.io/UIDS-GIDS), "nobody", and -2 and -1 of 16 and 32 bits.
# There is no upper bound: directories number people above 65535, too.
_SERVICE_UIDS = (
    range(60_000, 65_520),
    range(65_534, 65_536),
    range(0x7FFE_0000, 0x8000_0000),
    range(0xFFFF_FFFE, 0x1_0000_0000),
)
# Programs in place of a shell, by their names in any directory.
_NO_SHELLS = frozenset(("false", "halt", "nologin", "shutdown", "sync", "true"))
SUBUID = Path("/etc/subuid")  # numbers of users' containers, see subuid(5)
_SUBUID_LINE = re.compile(r"([^:]+):([0-9]{1,10}):([0-9]{1,10})")

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}"
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,63}\$?", re.IGNORECASE)
_PILOT = re.compile(r"p[0-9]{6,15}")
_PILOT_JOB = re.compile(r"(p[0-9]{6,15})(?:\.[0-9a-f]{8})?")  # its name
_SITE = re.compile(r"[0-9a-f]{8,32}")
_JOB = re.compile(r"[0-9]{1,10}")
_SBATCH = re.compile(
    r"--parsable|--job-name=p[0-9]{6,15}(?:\.[0-9a-f]{8})?|--nodes=1|--exclusive|--mem=0"
    r"|--nodelist=[A-Za-z0-9][A-Za-z0-9._-]{0,254}|--time=[0-9]{1,6}|--deadline=now\+[0-9]{1,9}"
    r"|--no-requeue|--export=ALL|--chdir=/|--input=/dev/null|--open-mode=append|--propagate=NONE"
    r"|--gres=gpu(?::[A-Za-z0-9][A-Za-z0-9._+-]{0,63})?:[0-9]{1,4}"
    r"|--ntasks=1|--cpus-per-task=[0-9]{1,5}|--mem=[0-9]{1,9}M"
    r"|--gres-flags=disable-binding"
    rf"|--partition={_NAME}|--account={_NAME}|--qos={_NAME}"
)
_MUST = ("--nodes=1", "--no-requeue", "--propagate=NONE")
_SUBMITTED = re.compile(rb"[0-9]{1,10}(;[^\s]*)?\r?\n")  # what sbatch says, at once or at its end
_LISTED = "%i %u %P %40j"  # names are cut: those of pilots are shorter
_SCANCEL = {"ask": ("-b", "-s", "TERM"), "end": (), "force": ("-f",)}
_PLAIN = re.compile(r"/[^\x00-\x1f\x7f\\%]{0,1023}")  # a path that sbatch takes verbatim
_UCRED = struct.Struct("3i")  # pid, uid, gid


class NotAllowed(Exception):  # noqa: N818 - what happens, not an error of ours
    """A request that is not carried out."""

    def __init__(self, code: str, cause: str) -> None:
        super().__init__(cause)
        self.code, self.cause = code, cause


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration by root: users and commands that are allowed."""

    daemon_uid: int
    partition: str
    agent: tuple[str, ...]  # the command of a pilot, without its --config
    min_uid: int = 1000
    users: frozenset[str] | None = frozenset()  # None: any
    groups: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()  # although they look like services
    denied: frozenset[str] = frozenset()
    place: str = "%h/.bftrainer/pilots"  # %h: the user's home, %u: the user's name
    environment: Mapping[str, str] = field(default_factory=dict)
    sbatch: str = "/usr/bin/sbatch"
    scancel: str = "/usr/bin/scancel"
    squeue: str = "/usr/bin/squeue"
    options: frozenset[str] = frozenset()  # of sbatch, beside ours; each exactly as here


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of the daemon: a pilot to submit or to forget, or jobs to cancel."""

    do: str
    user: str
    pilot: str = ""
    site: str = ""  # tells the pilots of several daemons apart
    options: tuple[str, ...] = ()  # of sbatch
    files: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 0.0
    jobs: tuple[str, ...] = ()
    how: str = ""


# ---- the configuration ----------------------------------------------------------------------


def read_config(path: Path) -> Config:
    """Read what root allows; refuse a file that anybody else could have written."""
    try:
        for place in (path, *path.absolute().parents):
            info = place.lstat()
            # Others cannot replace what is root's in a directory with the sticky bit, as /tmp.
            is_sticky = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX
            is_open = stat.S_ISLNK(info.st_mode) or (info.st_mode & 0o022 and not is_sticky)
            if info.st_uid != 0 or is_open:
                raise NotAllowed("BFT-1525", f"{place} could be written by others than root")
        return _config(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as problem:
        raise NotAllowed("BFT-1525", f"{path} cannot be used: {problem!r}") from problem


def _config(given: Any) -> Config:
    settings = dict(given)
    daemon = pwd.getpwnam(_text(settings.pop("daemon_user")))
    users = settings.pop("users", [])
    environment = settings.pop("environment", {})
    lists = {
        name: _texts(settings.pop(name, []))
        for name in ("groups", "allowed", "denied", "agent", "options")
    }
    min_uid = int(settings.pop("min_uid", 1000))
    config = Config(
        daemon_uid=daemon.pw_uid,
        agent=lists["agent"],
        users=None if users == "any" else frozenset(_texts(users)),
        groups=frozenset(lists["groups"]),
        allowed=frozenset(lists["allowed"]),
        denied=frozenset(lists["denied"]),
        options=frozenset(lists["options"]),
        min_uid=min_uid,
        environment={_text(name): _text(value) for name, value in environment.items()},
        **{name: _text(value) for name, value in settings.items()},
    )
    programs = (config.agent[0], config.sbatch, config.scancel, config.squeue)
    if not all(program.startswith("/") for program in programs) or min_uid < 1:
        raise ValueError("programs need absolute paths, min_uid must be 1 or more")
    if not re.fullmatch(_NAME, config.partition) or not re.search("%[hu]", config.place):
        raise ValueError("the partition is no name, or the place has no %h or %u")
    return config


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"no text: {value!r}"[:80])
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"no list: {value!r}"[:80])
    return tuple(map(_text, value))


# ---- the request ----------------------------------------------------------------------------


def parse(raw: bytes, options: AbstractSet[str] = frozenset()) -> Request:
    """Read a request; refuse everything that is not exactly one.

    ``options``: of sbatch, that root allows beside those of every pilot.
    """
    try:
        return _request(json.loads(raw), options)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise NotAllowed("BFT-1527", f"The request is malformed: {problem!r}"[:300]) from problem


def _request(given: Any, options: AbstractSet[str]) -> Request:
    kind, fields = given["do"], set(given) - {"do"}
    if kind == "submit" and fields == {"user", "pilot", "site", "options", "files", "grace_s"}:
        request = _submission(given, options)
    elif kind == "cancel" and fields == {"user", "jobs", "how"}:
        request = _cancellation(given)
    elif kind == "forget" and fields == {"user", "pilot", "site"}:
        user, pilot, site = (_text(given[name]) for name in ("user", "pilot", "site"))
        request = Request(do=kind, user=user, pilot=pilot, site=site)
    else:
        raise ValueError("missing or unknown fields")
    if not _USER.fullmatch(request.user):
        raise ValueError("no name of a user")
    of_pilot = _PILOT.fullmatch(request.pilot) and _SITE.fullmatch(request.site)
    if kind != "cancel" and not of_pilot:
        raise ValueError("no pilot or site")
    return request


def _submission(given: Mapping[str, Any], options: AbstractSet[str]) -> Request:
    if type(given["grace_s"]) not in (int, float) or not 0 <= given["grace_s"] <= 86_400:
        raise ValueError("no grace time")
    request = Request(
        do="submit",
        user=_text(given["user"]),
        pilot=_text(given["pilot"]),
        site=_text(given["site"]),
        options=_texts(given["options"]),
        files={_text(name): _text(text) for name, text in given["files"].items()},
        grace_s=float(given["grace_s"]),
    )
    extra = [word for word in request.options if not _SBATCH.fullmatch(word)]
    if wrong := [word for word in extra if word not in options]:
        raise ValueError(f"{wrong[0][:80]!r} is not allowed")
    names = [word.partition("=")[0] for word in request.options]
    if len(set(names)) < len(names):
        raise ValueError("an option is given twice")
    if lacking := set(_MUST) - set(request.options):
        raise ValueError(f"{min(lacking)} is missing")
    is_part = {"--ntasks", "--cpus-per-task", "--gres"} <= set(names)
    if is_part == ("--exclusive" in names):
        raise ValueError("neither a whole node nor GPUs with their CPUs")
    jobs = [word[11:] for word in request.options if word.startswith("--job-name=")]
    if [job.partition(".")[0] for job in jobs] != [request.pilot]:
        raise ValueError("the job's name is not the pilot's")
    if set(request.files) != set(FILES):
        raise ValueError("other files")
    if any(len(text.encode()) > FILES[name] for name, text in request.files.items()):
        raise ValueError("a file is too long")
    return request


def _cancellation(given: Mapping[str, Any]) -> Request:
    jobs = _texts(given["jobs"])
    user, how = _text(given["user"]), _text(given["how"])
    request = Request(do="cancel", user=user, jobs=jobs, how=how)
    if not 1 <= len(jobs) <= MOST_JOBS or not all(map(_JOB.fullmatch, jobs)):
        raise ValueError("no jobs")
    if request.how not in _SCANCEL:
        raise ValueError("no way to cancel")
    return request


def account_of(request: Request, config: Config) -> pwd.struct_passwd:
    """Return the account of the user; refuse one whom root does not allow."""
    try:
        account = pwd.getpwnam(request.user)
    except KeyError:
        raise NotAllowed("BFT-1528", f"There is no user {request.user} on this host") from None
    name, is_named = account.pw_name, config.users is not None and account.pw_name in config.users
    is_system = account.pw_uid < config.min_uid or account.pw_gid == 0
    if is_system or name != request.user or name in config.denied:
        raise NotAllowed("BFT-1528", f"Nothing may run as user {request.user}")
    is_exception = is_named or name in config.allowed
    if _is_of_service(account) and not is_exception:
        why = "it is an account of a service, by its name or number"
        raise NotAllowed("BFT-1528", f"Nothing may run as user {request.user}: {why}")
    if is_named:
        return account
    is_in_group = bool(config.groups) and not config.groups.isdisjoint(_groups_of(account))
    if config.users is not None and not is_in_group:
        raise NotAllowed("BFT-1528", f"User {request.user} is not among those that are allowed")
    # "any" means all who log in; a named user or group is meant whatever its shell and number.
    if not (is_exception or is_in_group) and (why := _why_nobody(account)):
        raise NotAllowed("BFT-1528", f"Nothing may run as user {request.user}: {why}")
    return account


def _is_of_service(account: pwd.struct_passwd) -> bool:
    is_numbered = any(account.pw_uid in numbers for numbers in _SERVICE_UIDS)
    return account.pw_name in SERVICES or is_numbered


def _why_nobody(account: pwd.struct_passwd) -> str:
    """Return why nobody logs in as an account; "": somebody may."""
    if Path(account.pw_shell).name in _NO_SHELLS:
        return f"its shell is {account.pw_shell}"
    try:
        text = SUBUID.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as problem:
        return f"{SUBUID}, which tells the numbers of containers, cannot be read: {problem}"
    for line in text.splitlines():
        parts = _SUBUID_LINE.fullmatch(line.strip())
        if parts is None or parts[1] in (account.pw_name, str(account.pw_uid)):
            continue
        if account.pw_uid in range(int(parts[2]), int(parts[2]) + int(parts[3])):
            return f"its number {account.pw_uid} is one of {SUBUID} for containers of {parts[1]}"
    return ""


def _groups_of(account: pwd.struct_passwd) -> set[str]:
    return set(map(_group_name, os.getgrouplist(account.pw_name, account.pw_gid)))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


# ---- as root --------------------------------------------------------------------------------


def caller_uid() -> int:
    """Return who asks: the kernel says so of a connection, sudo in a variable that it sets."""
    if stat.S_ISSOCK(os.fstat(0).st_mode):
        with socket.socket(fileno=os.dup(0)) as connection:
            if connection.family != socket.AF_UNIX:
                raise NotAllowed("BFT-1526", "Standard input is no Unix socket")
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(raw)[1])
    if not re.fullmatch("[0-9]{1,10}", os.environ.get("SUDO_UID", "")):
        raise NotAllowed("BFT-1526", "It was started neither by systemd nor by sudo")
    return int(os.environ["SUDO_UID"])


def _read_all(fd: int, deadline_s: float) -> bytes:
    """Read to the end; what is longer than a message is refused."""
    raw = b""
    while len(raw) <= MOST_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            raise NotAllowed("BFT-1530", f"There was no end of it within {LIMIT_S:.0f} s")
        try:
            chunk = os.read(fd, 1 << 16)
        except OSError as problem:
            raise NotAllowed("BFT-1527", f"It broke off: {problem}") from problem
        if not chunk:
            return raw
        raw += chunk
    raise NotAllowed("BFT-1527", f"It is longer than {MOST_BYTES} bytes")


def serve(arguments: Sequence[str]) -> dict[str, Any]:
    """Answer the request on standard input."""
    deadline_s = time.monotonic() + LIMIT_S
    is_isolated = sys.flags.isolated and sys.flags.no_site
    if not is_isolated or os.geteuid() != 0 or len(arguments) > 1:
        raise NotAllowed("BFT-1525", "It must be run by root, isolated: python -IS")
    config = read_config(Path(arguments[0]) if arguments else CONFIG)
    if (uid := caller_uid()) != config.daemon_uid:
        raise NotAllowed("BFT-1526", f"User {uid} is not the daemon's")
    request = parse(_read_all(0, deadline_s), config.options)
    if request.do == "submit" and f"--partition={config.partition}" not in request.options:
        raise NotAllowed("BFT-1527", f"Pilots are submitted to {config.partition} only")
    account = account_of(request, config)
    answer = _beside(request, config, account, deadline_s)
    action = f"{request.do} {request.pilot or ','.join(request.jobs)} as {account.pw_name}"
    syslog.syslog(f"{action}: {answer!r}"[:500])
    return answer


def _beside(
    request: Request, config: Config, account: pwd.struct_passwd, deadline_s: float
) -> dict[str, Any]:
    """Do the work in a child that has the user's rights, and return what it says."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _as_user(request, config, account, theirs, deadline_s - SPARE_S)
    os.close(theirs)
    try:
        raw = _read_all(ours, deadline_s)
    finally:
        for kill in (os.killpg, os.kill):  # it may not lead a group yet
            try:
                kill(child, signal.SIGKILL)
            except OSError:
                continue  # and nobody waits for it: it may hang in a file system
    try:
        answer: dict[str, Any] = json.loads(raw)  # of our own code, if it came so far
    except ValueError:
        raise NotAllowed("BFT-1530", "The command's process ended without an answer") from None
    return answer


# ---- as the user ----------------------------------------------------------------------------


def _as_user(
    request: Request, config: Config, account: pwd.struct_passwd, out: int, deadline_s: float
) -> NoReturn:
    """Give up root for good, do the work, write the answer; never returns."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):  # in a file system that hangs this process stays, the answer does not
            os.dup2(null, fd)
        become(account)
        work = {"submit": submit, "cancel": cancel, "forget": forget}[request.do]
        answer = work(request, config, account, deadline_s)
    except NotAllowed as refused:
        answer = _error(refused)
    except OSError as problem:  # before a command had begun
        answer = _error(NotAllowed("BFT-1529", f"As {account.pw_name}: {problem}"))
    except BaseException as problem:  # noqa: BLE001 - nothing may run on in this process
        answer = _error(NotAllowed("BFT-1530", repr(problem)[:300]))
    try:
        os.write(out, json.dumps(answer).encode()[:MOST_BYTES])
    finally:
        os._exit(0)


def become(account: pwd.struct_passwd) -> None:
    """Become the user, with their groups and nothing of root's."""
    uid, gid = account.pw_uid, account.pw_gid
    os.initgroups(account.pw_name, gid)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3:
        raise NotAllowed("BFT-1530", "The rights of root were not given up")
    for again in (os.setuid, os.seteuid, os.setgid):
        try:
            again(0)
        except PermissionError:
            continue
        raise NotAllowed("BFT-1530", "The rights of root could be had again")
    os.umask(0o077)
    os.chdir("/")
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 1 << 20),
        (resource.RLIMIT_CPU, int(LIMIT_S)),
    ):
        resource.setrlimit(kind, (limit, limit))


def environment_of(config: Config, account: pwd.struct_passwd) -> dict[str, str]:
    """Return all variables of the command, and so of the job."""
    return {
        "PATH": "/usr/bin:/bin",
        **config.environment,
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
    }


def submit(
    request: Request, config: Config, account: pwd.struct_passwd, deadline_s: float
) -> dict[str, Any]:
    """Write the pilot's files and submit it; without a job there are no files."""
    directory = make_directory(request, config.place, account)
    agent = shlex.join([*config.agent, "--config", str(directory / "agent.json")])
    environment = environment_of(config, account)
    herald = ""
    if request.grace_s:
        herald, environment[GRACE] = HERALD, f"{request.grace_s:g}"
    argv = (config.sbatch, *request.options, f"--output={directory}/agent.log")
    try:
        for name, text in request.files.items():
            _write(directory / name, text.encode())
        script = f"#!/bin/sh\n{herald}exec {agent}\n"
        answer = _run(argv, environment, deadline_s, script, said=_SUBMITTED)
    except OSError:  # before it had begun
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if answer["status"] != 0 and not any(sign in answer["stderr"] for sign in UNHEARD):
        shutil.rmtree(directory, ignore_errors=True)
    return answer


def forget(
    request: Request, config: Config, account: pwd.struct_passwd, _deadline_s: float
) -> dict[str, Any]:
    """Remove the files of a pilot that has no job, although it was not known at first."""
    _, site = _places(config.place, account, request.site)
    for folder in site.glob(f"{request.pilot}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    return {"status": 0, "stdout": "", "stderr": ""}


def make_directory(request: Request, place: str, account: pwd.struct_passwd) -> Path:
    """Create a new directory of the user's, 0700; what is above it may be no link."""
    directory, site = _places(place, account, request.site)
    path = site / f"{request.pilot}-{secrets.token_hex(4)}"
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    at = os.open(directory, flags)
    for part in path.relative_to(directory).parts:
        if os.fstat(at).st_uid != account.pw_uid or os.fstat(at).st_mode & 0o022:
            raise NotAllowed("BFT-1529", f"{directory} is not {account.pw_name}'s alone to write")
        directory /= part
        try:
            os.mkdir(part, 0o700, dir_fd=at)
        except FileExistsError:
            if directory == path:
                raise
        below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    return path


def _places(place: str, account: pwd.struct_passwd, site: str) -> tuple[Path, Path]:
    """Return the directory that root names for the user, and the one of a site's pilots."""
    parts = place.replace("%u", account.pw_name).split("/")
    n_given = 1 + max(i for i, part in enumerate(place.split("/")) if "%" in part)
    base, whole = (
        Path("/".join(names).replace("%h", account.pw_dir)) for names in (parts[:n_given], parts)
    )
    path = whole / site
    if not _PLAIN.fullmatch(str(path)) or ".." in path.parts or not path.is_relative_to(base):
        raise NotAllowed("BFT-1529", f"{str(path)!r} cannot be passed on to sbatch")
    return base, path


def _write(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)


def cancel(
    request: Request, config: Config, account: pwd.struct_passwd, deadline_s: float
) -> dict[str, Any]:
    """Cancel those of the jobs that are pilots of the user."""
    environment = environment_of(config, account)
    listing = (config.squeue, "-h", "-a", "-o", _LISTED, "-j", ",".join(request.jobs))
    queue = _run(listing, {**environment, "LC_ALL": "C"}, deadline_s)
    if queue["status"] != 0:  # also if there is no such job any more
        return queue
    pilots = []
    for line in str(queue["stdout"]).splitlines():
        job, *words = line.split(" ", 3)
        if job in request.jobs and words[:2] == [account.pw_name, config.partition]:
            pilots += [job] if _PILOT_JOB.fullmatch(words[2].strip()) else []
    if not pilots:
        return {"status": 0, "stdout": "", "stderr": ""}
    return _run((config.scancel, *_SCANCEL[request.how], *pilots), environment, deadline_s)


def _run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    deadline_s: float,
    text: str = "",
    *,
    said: re.Pattern[bytes] | None = None,
) -> dict[str, Any]:
    """Run a command until it ends, or shortly after it ``said`` what is wanted.

    Its outputs belong to its user, who may print anything and keep them open: their ends mean
    nothing, and little is kept of them. Whoever calls us kills what is left.
    """
    child = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
    )
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise RuntimeError("pipes were requested")
    with contextlib.suppress(OSError):  # it need not read
        child.stdin.write(os.fsencode(text))
        child.stdin.close()
    out, err = child.stdout.fileno(), child.stderr.fileno()
    output, most_bytes = {out: b"", err: b""}, {out: MOST_WORDS, err: MOST_TROUBLE}
    n_printed, is_open, has_said = 0, {out, err}, False
    while True:
        status = child.poll()  # before the look at what it printed
        readable, _, _ = select.select(list(is_open), [], [], LOOK_S if status is None else 0)
        if (status is not None and not readable) or time.monotonic() > deadline_s:
            break
        for fd in readable:
            chunk = os.read(fd, 1 << 16)
            n_printed += len(chunk)
            if not chunk:
                is_open.discard(fd)
            output[fd] = (output[fd] + chunk)[: most_bytes[fd]]
        if not has_said and said and said.match(output[out]):
            has_said, deadline_s = True, min(deadline_s, time.monotonic() + LINGER_S)
        if n_printed > MOST_PRINTED:
            break
    if has_said:
        status = 0
    elif n_printed > MOST_PRINTED:
        raise NotAllowed("BFT-1530", f"{argv[0]} printed more than {MOST_PRINTED} bytes")
    elif status is None:
        raise NotAllowed("BFT-1530", f"{argv[0]} took longer than {LIMIT_S - SPARE_S:.0f} s")
    elif not 0 <= status < 128:  # of a shell that says what ended its program
        raise NotAllowed("BFT-1530", f"{argv[0]} was ended by a signal")
    return {
        "status": status,
        "stdout": output[out].decode(errors="replace"),
        "stderr": output[err].decode(errors="replace"),
    }


def _error(refused: NotAllowed) -> dict[str, Any]:
    return {"error": {"code": refused.code, "cause": refused.cause}}


def main(arguments: Sequence[str]) -> int:
    """Answer one request; the argument, if there is one, is the configuration's path."""
    os.umask(0o077)
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    syslog.openlog("bftrainer-submit-helper", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
    try:
        answer = serve(arguments)
    except NotAllowed as refused:
        syslog.syslog(f"refused: {refused.code} {refused.cause}")
        answer = _error(refused)
    out = json.dumps(answer).encode() + b"\n"
    try:
        while out:  # a connection takes a part at a time
            out = out[os.write(1, out) :]
    except OSError as problem:
        syslog.syslog(f"nobody waits for the answer: {problem}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
