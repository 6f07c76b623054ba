"""The processes of the stand-in's jobs, in the place of LSF's sbatchd and res.

A job is a session of its own, started by a small shell that writes its exit status to a file. So
jobs go on, and their ends are not lost, while the server is dead.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from bftrainer.batch import process
from lsf_adapters.testcluster.config import CLUSTER, MASTER
from lsf_adapters.testcluster.state import Job

# Arguments: directory, working directory, umask, input, output, error, then the job's command.
_WRAPPER = """\
dir=$1; cd "$2" 2>/dev/null || cd /tmp; umask "$3"; in=$4 out=$5 err=$6; shift 6
setsid /bin/sh -c 'echo $$ >"$0/pid.new"; mv "$0/pid.new" "$0/pid"; exec "$@"' "$dir" "$@" \
    <"$in" >>"$out" 2>>"$err"
echo $? >"$dir/status.new"; mv "$dir/status.new" "$dir/status"
"""
# Appends the report and the output to the file of -o, as the job's user.
_REPORT = 'cat "$1" "$2" >>"$3"'


class Runner:
    """Starts, signals and follows the jobs of one cluster."""

    def __init__(self, directory: Path, conf: Path, enter: Mapping[str, Sequence[str]]) -> None:
        self._directory = directory / "jobs"
        self._conf = conf
        self._enter = enter
        self._is_root = os.geteuid() == 0
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def folder(self, job: Job) -> Path:
        """Directory of a job's files."""
        return self._directory / job.key

    def store(self, job: Job, script: str, environment: Mapping[str, str]) -> None:
        """Keep script and environment of a job, or of all elements of an array."""
        folder = self._directory / str(job.id)
        folder.mkdir(mode=0o700)
        lines = "\0".join(f"{name}={value}" for name, value in environment.items())
        (folder / "env").write_text(lines, errors="surrogateescape")
        path = folder / "script"
        path.write_text(script, errors="surrogateescape")
        path.chmod(0o700)
        self._give(job, folder, *folder.iterdir())

    def _give(self, job: Job, *paths: Path) -> None:
        """Make the job's user the owner."""
        if self._is_root:
            for path in paths:
                os.chown(path, job.uid, job.gid)

    def start(self, job: Job) -> None:
        """Start the job's process; sets the ids of its wrapper."""
        common, folder = self._directory / str(job.id), self.folder(job)
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in ("status", "pid"):
            (folder / name).unlink(missing_ok=True)
        (folder / "out").touch()
        self._give(job, folder, folder / "out")
        words = (common / "env").read_text(errors="surrogateescape").split("\0")
        environment = dict(word.split("=", 1) for word in words if "=" in word)
        environment |= self._job_environment(job)
        command = [*self._enter.get(job.hosts[0], ()), *self._as_user(job)]
        script = common / "script"
        with script.open("rb") as file:
            has_interpreter = file.read(2) == b"#!"
        if not has_interpreter:
            command.append(job.login_shell or "/bin/sh")
        out = folder / "out"
        error = job.error or str(out)
        child = process.spawn(
            (
                *("/bin/sh", "-c", _WRAPPER, "sbatchd", str(folder), job.cwd, f"{job.umask:o}"),
                *(job.input or "/dev/null", str(out), self._fill(error, job)),
                *(*command, str(script)),
            ),
            env=environment,
            cwd=Path("/"),
        )
        self._children[child.pid] = child
        job.wrapper_pid = child.pid
        job.wrapper_ticks = start_ticks(child.pid)
        job.pid = 0

    def _as_user(self, job: Job) -> tuple[str, ...]:
        """Return what starts a command as the job's user; only root can."""
        if not self._is_root or not job.uid:
            return ()
        return ("setpriv", f"--reuid={job.uid}", f"--regid={job.gid}", "--clear-groups")

    def _job_environment(self, job: Job) -> dict[str, str]:
        counts = Counter(job.hosts)
        return {
            "HOSTNAME": job.hosts[0],
            "LSB_BATCH_JID": job.key,
            "LSB_HOSTS": " ".join(job.hosts),
            "LSB_JOBEXIT_STAT": "0",
            "LSB_JOBFILENAME": str(self._directory / str(job.id) / "script"),
            "LSB_JOBID": str(job.id),
            "LSB_JOBINDEX": str(job.index),
            "LSB_JOBNAME": job.name,
            "LSB_MCPU_HOSTS": "".join(f"{name} {n} " for name, n in counts.items()),
            "LSB_OUTPUTFILE": self._fill(job.output, job),
            "LSB_QUEUE": job.queue,
            "LSB_SUB_HOST": MASTER,
            "LSB_TRAPSIGS": "trap # 15 10 12 2 1",
            "LSFUSER": job.user,
            "LSF_ENVDIR": str(self._conf),
            "LSF_CLUSTER_NAME": CLUSTER,
            "LS_EXEC_T": "START",
            "LS_SUBCWD": job.cwd,
        }

    def _fill(self, name: str, job: Job) -> str:
        """Return a file name with %J and %I filled in."""
        return name.replace("%J", str(job.id)).replace("%I", str(job.index))

    def session(self, job: Job) -> int:
        """The job's process group; 0 while it is not known."""
        if not job.pid:
            try:
                job.pid = int((self.folder(job) / "pid").read_text())
            except (OSError, ValueError):
                return 0
        return job.pid

    def send(self, job: Job, number: signal.Signals) -> bool:
        """Signal all processes of a job; whether it has any yet."""
        group = self.session(job)
        if not group:
            return self.has_ended(job)
        process.kill_group(group, number)
        return True

    def has_ended(self, job: Job) -> bool:
        """Return whether the job's process is gone."""
        if (self.folder(job) / "status").exists():
            return True
        return not job.wrapper_pid or start_ticks(job.wrapper_pid) != job.wrapper_ticks

    def exit_code(self, job: Job) -> int:
        """The status of an ended job, as a shell prints it; 137 if nobody noted it."""
        try:
            return int((self.folder(job) / "status").read_text())
        except (OSError, ValueError):
            return 137

    def reap(self) -> None:
        """Collect wrappers that have ended."""
        self._children = {
            pid: child for pid, child in self._children.items() if child.poll() is None
        }

    def report(self, job: Job, text: str) -> None:
        """Append the report and the output of an ended job to the file of -o."""
        name = self._fill(job.output, job)
        path = Path(job.cwd, name)
        if not name or path == Path("/dev/null") or (path.exists() and not _is_plain(path)):
            return
        folder = self.folder(job)
        head = folder / "report"
        head.write_text(text, errors="surrogateescape")
        head.chmod(0o644)
        files = map(str, (head, folder / "out", path))
        command = (*self._as_user(job), "/bin/sh", "-c", _REPORT, "sbatchd", *files)
        process.run(command, timeout_s=10)


def _is_plain(path: Path) -> bool:
    return stat.S_ISREG(path.stat().st_mode)


def start_ticks(pid: int) -> int:
    """Return when a process started, in the kernel's ticks; 0: it is gone or has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    words = text.rpartition(")")[2].split()
    return 0 if words[0] in "ZX" else int(words[19])
