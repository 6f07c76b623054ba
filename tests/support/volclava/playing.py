"""Plays steps on a cluster and writes down what can be compared with another's.

A scenario is a function of a ``Player``. Two clusters that behave alike give the same lines:
commands with exit status, streams and masked text; the order of states of every job.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from bftrainer.batch import process
from tests.support.volclava.masking import masked
from tests.support.waiting import wait_for

_SUBMITTED: Final = re.compile(r"^Job <(\d+)> is submitted", re.MULTILINE)
FINISHED: Final = frozenset({"DONE", "EXIT"})


class Cluster(Protocol):
    """What the stand-in and the real one have in common."""

    directory: Path

    @property
    def node_names(self) -> tuple[str, ...]:
        """The hosts that run jobs."""

    def command(
        self, *argv: str, user: str | None = None, stdin: str = "", timeout_s: float = 30.0
    ) -> process.Completed:
        """Run a command."""

    def stop_controller(self) -> None:
        """Freeze mbatchd."""

    def start_controller(self) -> None:
        """Let it go on."""

    def kill_controller(self) -> None:
        """Kill mbatchd."""

    def kill_host(self, name: str) -> None:
        """Kill the daemons of a host."""

    def start_host(self, name: str) -> None:
        """Start them again."""


@dataclass(slots=True, kw_only=True)
class Player:
    """One cluster on which a scenario is played."""

    cluster: Cluster
    users: Mapping[str, str]  # account in the scenario -> account of this cluster
    scratch: Path  # where jobs may write
    events_file: Path
    lines: list[str] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)  # job name -> id
    seen: dict[str, list[str]] = field(default_factory=dict)  # job name -> its states so far
    latencies_s: dict[str, list[float]] = field(default_factory=dict)

    def say(
        self,
        *argv: str,
        user: str = "alice",
        stdin: str = "",
        keeps_numbers: bool = False,
        timeout_s: float = 60.0,
    ) -> process.Completed:
        """Run a command and note it; ``{name}`` in it stands for the id of a job."""
        done = self.quietly(*argv, user=user, stdin=stdin, timeout_s=timeout_s)
        for _ in range(20):
            if done.returncode != -signal.SIGPIPE:
                break  # else a bsub of volclava that was refused before it had said everything
            done = self.quietly(*argv, user=user, stdin=stdin, timeout_s=timeout_s)
        end = "no end" if done.timed_out else f"=> {done.returncode}"
        self.lines.append(f"[{user}]$ {' '.join(' '.join(argv).split())} {end}")
        names = {
            **{own: common for common, own in self.users.items() if own != common},
            str(self.cluster.directory): "CLUSTER",
        }
        for mark, text in (("", done.stdout), ("! ", done.stderr)):
            shown = masked(text, names=names, keeps_numbers=keeps_numbers)
            self.lines += [mark + line for line in shown.splitlines()]
        return done

    def quietly(
        self, *argv: str, user: str = "alice", stdin: str = "", timeout_s: float = 60.0
    ) -> process.Completed:
        """Run a command without a note."""
        words = [self._filled(word) for word in argv]
        return self.cluster.command(
            *words, user=self.users.get(user, user), stdin=stdin, timeout_s=timeout_s
        )

    def _filled(self, word: str) -> str:
        for name, job_id in self.ids.items():
            word = word.replace(f"{{{name}}}", job_id)
        return word.replace("{scratch}", str(self.scratch))

    def submit(self, name: str, *options: str, user: str = "alice", work: str = "sleep 300") -> str:
        """Submit a job under a name (noted), and return its id."""
        done = self.say("bsub", "-J", name, "-o", "/dev/null", *options, work, user=user)
        found = _SUBMITTED.search(done.stdout)
        assert found is not None, done
        self.ids[name.partition("[")[0]] = found[1]
        return found[1]

    # -- states --------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """The state of this scenario's jobs, by name; every change is remembered."""
        done = self.quietly("bjobs", "-a", "-u", "all", "-o", "jobid stat job_name", "-json")
        if "{" not in done.stdout:
            return {}
        records = json.loads(done.stdout[done.stdout.index("{") :])["RECORDS"]
        now = {
            record["JOB_NAME"]: record["STAT"]
            for record in records
            if self.ids.get(record["JOB_NAME"].partition("[")[0]) == record["JOBID"]
        }
        for name, state in now.items():
            # Every job is pending for a moment, whether or not somebody looked.
            seen = self.seen.setdefault(name, ["PEND"])
            if state != seen[-1]:
                seen.append(state)
            if seen[-3:] == ["RUN", "PEND", "RUN"]:  # a host that did not take it: rare, no rule
                del seen[-2:]
        return now

    def wait_state(self, name: str, *wanted: str, timeout_s: float = 150.0) -> str:
        """Wait until a job is in one of these states, and note what it was in so far."""
        state = wait_for(
            lambda: found if (found := self.states().get(name)) in wanted else None,
            what=f"job {name} in {wanted} (so far {self.seen.get(name)})",
            timeout_s=timeout_s,
            interval_s=0.1,
        )
        self.lines.append(f"# {name}: {' '.join(self.seen[name])}")
        return state

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 150.0) -> None:
        """Wait for anything else."""
        wait_for(lambda: bool(condition()), what=what, timeout_s=timeout_s, interval_s=0.1)

    def hosts(self) -> dict[str, list[str]]:
        """The lines of ``bhosts -w`` by host: status, JL/U, MAX, NJOBS, RUN, SSUSP, USUSP, RSV."""
        done = self.quietly("bhosts", "-w")
        words = [line.split() for line in done.stdout.splitlines()[1:]]
        return {line[0]: line[1:] for line in words}

    def clear(self) -> None:
        """End all jobs and wait until all hosts are free."""
        nodes = self.cluster.node_names

        def is_free() -> bool:
            self.quietly("bkill", "-s", "KILL", "-u", "all", "0", user="lsfadm")
            hosts = self.hosts()
            is_empty = self.quietly("bjobs", "-u", "all").returncode == 254
            return is_empty and all(hosts[n][0] == "ok" and hosts[n][3] == "0" for n in nodes)

        wait_for(is_free, what="an empty cluster", interval_s=0.5)

    def time_it(self, what: str, began_s: float) -> None:
        """Note a latency that ends now."""
        self.latencies_s.setdefault(what, []).append(time.time() - began_s)
