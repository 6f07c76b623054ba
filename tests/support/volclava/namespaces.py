"""The lab: namespaces with one "host" each, and how to run something on one of them.

``unshare`` starts a first process in a new process, network and mount namespace; it prepares the
mounts, starts one keeper per host in a UTS and mount namespace of its own, and collects dead
children from then on (sbatchd takes an uncollected process for a living job). Nothing is mounted
outside, and everything ends with the first process.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bftrainer.batch import process
from tests.support.volclava.config import ACCOUNTS, VolclavaConfig, accounts_files
from tests.support.waiting import wait_for

_HOST_VARIABLE: Final = "BFT_LAB_HOST"
_SOURCE = Path(__file__).with_name("vhost.c")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REPOSITORY = Path(__file__).parents[3]

# cover TOP PATH...: hides what is below TOP, except for the paths.
_SETUP = """\
set -e
cover() {
    top=$1; shift
    count=$((count + 1)); stage=STAGES/$host$count
    mkdir -p "$stage"
    mount -t tmpfs -o "mode=$mode" none "$stage"
    for path; do
        mkdir -p "$stage${path#"$top"}"
        mount --bind "$path" "$stage${path#"$top"}"
    done
    mount --rbind "$stage" "$top"
}
"""

# Process 1. A keeper that ends is replaced by nothing: then so is its host.
_COLLECT = """\
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.05)
"""


class Lab:
    """The namespaces of one cluster."""

    def __init__(self, config: VolclavaConfig) -> None:
        self.config = config
        self.directory = config.directory
        self.preload = self.directory / "vhost.so"
        self._unshare: subprocess.Popen[bytes] | None = None
        self._first_pid = 0
        self._keepers: dict[str, int] = {}  # host -> process id, as seen from outside

    # -- up and down -------------------------------------------------------------

    def up(self) -> None:
        """Prepare files and start the namespaces; what an earlier lab left here is ended first."""
        self._end_leftover()
        self._write_files()
        script = self.directory / "lab.sh"
        script.write_text(self._script())
        with (self.directory / "log" / "lab.log").open("wb") as log:
            self._unshare = process.spawn(
                [
                    *("setpriv", "--pdeathsig=KILL"),  # a test that is killed leaves nothing
                    *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL"),
                    *("--mount-proc", "--propagation=private", "/bin/sh", str(script)),
                ],
                env={"PATH": _PATH},
                cwd=Path("/"),
                stdout=log,
                stderr=log,
            )
        self._first_pid = wait_for(self._find_first, what="the lab's first process", timeout_s=20)
        (self.directory / "lab.pid").write_text(f"{self._first_pid}\n")
        self._keepers = wait_for(self._find_keepers, what=f"the hosts (see {log.name})")

    def down(self) -> None:
        """End every process of the lab; mounts and namespaces go with the last one."""
        pids = self.processes()
        if self._first_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first_pid, signal.SIGKILL)
        if self._unshare is not None:
            try:
                self._unshare.wait(10)  # it collects the first process, then ends
            except subprocess.TimeoutExpired:
                self._unshare.kill()
                self._unshare.wait()
        wait_for(lambda: not any(map(_is_there, pids)), what="the end of the lab's processes")
        self._unshare, self._first_pid, self._keepers = None, 0, {}
        (self.directory / "lab.pid").unlink(missing_ok=True)

    def _end_leftover(self) -> None:
        """End the lab of a test run that was killed."""
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid = int((self.directory / "lab.pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if os.fsencode(self.directory) in words:
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda: not _is_there(pid), what="the end of an earlier lab")

    def _write_files(self) -> None:
        etc = self.directory / "etc"
        shutil.rmtree(etc, ignore_errors=True)
        shutil.copytree(
            "/etc", etc, symlinks=True, ignore_dangling_symlinks=True, ignore=_no_special
        )
        for name, text in accounts_files(self.config).items():
            before = "" if name == "hosts" else (etc / name).read_text()
            (etc / name).unlink(missing_ok=True)  # a package may have made it a link
            (etc / name).write_text(before + text)
        for name, uid in ACCOUNTS.items():
            home = self.directory / "home" / name
            home.mkdir(parents=True, exist_ok=True)
            os.chown(home, uid, uid)
        for host in self.config.host_names:
            (self.directory / "stage").mkdir(exist_ok=True)
            (self.directory / "stage" / host).mkdir(exist_ok=True)
        done = process.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(self.preload), str(_SOURCE), "-ldl"],
            timeout_s=60,
        )
        if not done.is_ok:
            raise RuntimeError(f"cc: {done.stderr}")

    def _script(self) -> str:
        """What process 1 does first, as a shell script."""
        visible = {
            self.directory,
            self.config.prefix,
            Path(sys.base_prefix).resolve(),
            Path(sys.prefix).resolve(),
            _REPOSITORY,
        }
        stages = self.directory / "stage"
        lines = [_SETUP.replace("STAGES", shlex.quote(str(stages)))]
        lines += ["ip link set lo up 2>/dev/null || ifconfig lo up", "count=0 mode=755 host="]
        lines.append(_words("mount", "--bind", str(self.directory / "etc"), "/etc"))
        lines += [_cover(top, visible) for top in _closed(visible)]
        # Of its own for every host: sbatchd keeps the state of jobs there, by job id.
        private = _cover(Path("/tmp"), visible)
        for name in self.config.host_names:
            keeper = [f"host={name} mode=1777", f"hostname {name}", private, "exec sleep infinity"]
            inner = lines[0] + "count=0\n" + "\n".join(keeper)
            lines.append(
                f"{_HOST_VARIABLE}={name} {_words('unshare', '--uts', '--mount')} "
                f"sh -c {shlex.quote(inner)} &"
            )
        python = Path(sys.executable).resolve()
        lines.append("exec " + _words(str(python), "-I", "-S", "-c", _COLLECT, str(self.directory)))
        return "\n".join(lines) + "\n"

    def _find_first(self) -> int:
        unshare = self._unshare
        assert unshare is not None
        assert unshare.poll() is None, (self.directory / "log" / "lab.log").read_text()
        return next(iter(_children(unshare.pid)), 0)

    def _find_keepers(self) -> dict[str, int] | None:
        assert _is_there(self._first_pid), (self.directory / "log" / "lab.log").read_text()
        found = {}
        for pid in _children(self._first_pid):
            if _comm(pid) == "sleep":
                found[_environment(pid).get(_HOST_VARIABLE, "")] = pid
        return found if set(self.config.host_names) <= set(found) else None

    # -- inside --------------------------------------------------------------------

    def processes(self, host: str | None = None, names: Iterable[str] = ()) -> list[int]:
        """Processes of the lab, of one host, of certain names; ids as seen from outside."""
        if not self._first_pid:
            return []
        own = _namespace(self._first_pid, "pid")
        if not own:
            return []  # it has ended, and all others with it
        uts = _namespace(self._keepers[host], "uts") if host is not None else None
        wanted = set(names)
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            pid = int(entry.name)
            if _namespace(pid, "pid") != own or (uts and _namespace(pid, "uts") != uts):
                continue
            if not wanted or _comm(pid) in wanted:
                found.append(pid)
        return found

    def enter(
        self, host: str, user: str, *, cwd: str = "/", env: Mapping[str, str] | None = None
    ) -> list[str]:
        """The command line that runs what follows it on a host, as an account."""
        given = {**self.environment(user), **(env or {})}
        return [
            *("nsenter", "--target", str(self._keepers[host]), "--mount", "--uts", "--net"),
            *("--pid", f"--wdns={cwd}", "--"),
            *_as_user(user),
            *("env", *(f"{name}={value}" for name, value in given.items())),
        ]

    def environment(self, user: str) -> dict[str, str]:
        """What daemons and commands need in their environment."""
        home = "/" if user == "root" else f"{self.directory}/home/{user}"
        return {
            "HOME": home,
            "USER": user,
            "LOGNAME": user,
            "LSF_ENVDIR": str(self.config.lsf_envdir),
            "LD_PRELOAD": str(self.preload),
            "PATH": f"{self.config.prefix}/bin:{_PATH}",
        }

    def run(
        self,
        argv: Sequence[str],
        *,
        host: str,
        user: str,
        stdin: str = "",
        timeout_s: float = 30.0,
        cwd: str = "/",
    ) -> process.Completed:
        """Run a command on a host to its end."""
        return process.run(
            [*self.enter(host, user, cwd=cwd), *argv],
            timeout_s=timeout_s,
            env={"PATH": _PATH, "LC_ALL": "C", "TZ": "UTC"},
            cwd=Path("/"),
            stdin=stdin,
        )

    def write_wrappers(self, host: str, user: str) -> None:
        """Write scripts that run volclava's commands as an account, for callers from outside.

        The caller's environment goes along, as it does with a bsub of LSF.
        """
        bindir = self.config.bindir
        bindir.mkdir(exist_ok=True)
        entered = self.enter(host, user)
        entered[entered.index("--wdns=/")] = "--wdns=WD"
        before = _words(*entered).replace("--wdns=WD", '"--wdns=$wd"')
        directory = shlex.quote(str(self.directory))
        for program in sorted((self.config.prefix / "bin").iterdir()):
            script = bindir / program.name
            script.write_text(
                "#!/bin/sh\n"
                f'case "$PWD" in {directory}|{directory}/*) wd=$PWD ;; *) wd=/ ;; esac\n'
                f'exec {before} {shlex.quote(str(program))} "$@"\n'
            )
            script.chmod(0o755)


def _as_user(user: str) -> tuple[str, ...]:
    if user == "root":
        return ()
    uid = ACCOUNTS[user]
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")


def _closed(paths: Iterable[Path]) -> list[Path]:
    """The outermost directories that ordinary accounts may not pass on the way to the paths."""
    found = set()
    for path in paths:
        for parent in [path, *path.parents][::-1]:
            if parent.is_relative_to("/tmp"):
                break  # the hosts' own /tmp takes care of these
            if not parent.stat().st_mode & 0o001:
                found.add(parent)
                break
    return sorted(found)


def _cover(top: Path, paths: Iterable[Path]) -> str:
    below = sorted(path for path in paths if path.is_relative_to(top))
    kept = [p for p in below if not any(p != q and p.is_relative_to(q) for q in below)]
    return _words("cover", str(top), *map(str, kept))


def _words(*words: str) -> str:
    return " ".join(map(shlex.quote, words))


def _no_special(directory: str, names: list[str]) -> list[str]:
    """The entries of /etc that cannot be copied: sockets and the like."""
    paths = ((name, Path(directory) / name) for name in names)
    return [n for n, p in paths if not (p.is_symlink() or p.is_file() or p.is_dir())]


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(w) for w in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _environment(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return {}


def _namespace(pid: int, kind: str) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    return ""


def _is_there(pid: int) -> bool:
    """Whether the process lives; one that waits to be collected does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
