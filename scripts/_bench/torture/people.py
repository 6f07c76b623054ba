"""What people do on the site all the time, whether or not somebody attacks.

Bob's ordinary jobs take a node from the innocent trainer, ada submits and runs studies in a
directory that all may write.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from _bench.host_jobs import job_wait
from _bench.torture.plants import CANARY, SHARED, STUDY, TRAINER
from _bench.torture.site import Site
from _bench.torture.talkers import TRAINING
from bftrainer.batch.process import Completed
from bftrainer.model.errors import BftError
from tests.support.hosts import HostError
from tests.support.hosts.plan import CONTROLLER

JOB_EVERY_S = 12.0
SUBMIT_EVERY_S = 7.0
LAST_S = 5.0  # before a slice ends nothing new begins
VERB_S = 90.0  # no verb takes so long, unless it hangs
_STUDY = """\
name: s
parameters: {lr: {type: float, low: 0.1, high: 0.3}}
sampler: random
rule: {name: sha, trials: 1, least: 1, most: 1, eta: 2}
"""
_TRIAL = TRAINING.format(samples=48, epochs=1) + "    run.report(1.0)\n"


@dataclass(slots=True, kw_only=True)
class Done:
    """What came of it in a slice."""

    waits_s: list[float] = field(default_factory=list)  # of ordinary jobs
    unsubmitted: int = 0  # ordinary jobs that Slurm did not take
    submitted: list[str] = field(default_factory=list)  # acknowledged
    refused: int = 0
    lost: list[str] = field(default_factory=list)  # acknowledged, and not there
    verbs: dict[str, int] = field(default_factory=dict)  # in the directory: their exit status
    hanging: list[str] = field(default_factory=list)
    ugly: list[str] = field(default_factory=list)  # a traceback, or control characters


class People:
    """Their doings in one slice of time."""

    def __init__(self, site: Site, number: int, end_s: float) -> None:
        self._site, self._end_s = site, end_s - LAST_S
        self._place = SHARED / f"slice-{number}"
        self._is_study = bool((number + 1) // 2 % 2)  # an attack and its load do the same
        self.done = Done()
        self._pool = ThreadPoolExecutor(3)
        self._ada = [self._pool.submit(self._submits), self._pool.submit(self._in_shared)]
        self._all = [*self._ada, self._pool.submit(self._bob)]

    @property
    def have_done(self) -> bool:
        """Whether nothing of it goes on."""
        return all(doing.done() for doing in self._all)

    def end(self) -> Done:
        """Look for what was submitted, and tidy up."""
        for doing in self._all:
            doing.result()
        self._pool.shutdown()
        client = self._site.daemon.client
        for trainer_id in self.done.submitted:
            try:
                client.cancel(trainer_id)
            except BftError as problem:
                self.done.lost.append(f"{trainer_id}: {problem}")
        self._site.cluster.does(CONTROLLER, "rm", "-rf", str(self._place))
        return self.done

    @property
    def _has_ada_done(self) -> bool:
        return all(doing.done() for doing in self._ada)

    def _every(self, interval_s: float) -> bool:
        time.sleep(interval_s)
        return time.monotonic() < self._end_s

    def _bob(self) -> None:
        # As long as ada has not done: a slice that takes longer is disturbed as often.
        while self._every(JOB_EVERY_S if self.done.waits_s else 2.0) or not self._has_ada_done:
            nodes = self._site.view().observed_nodes
            if nodes:
                try:
                    waited_s = job_wait(self._site.cluster, "-w", nodes[-1], "--exclusive")
                    self.done.waits_s.append(waited_s)
                except HostError:  # where nobody has a processor, Slurm does not answer in time
                    self.done.unsubmitted += 1

    def _submits(self) -> None:
        ada = self._site.ada
        while self._every(SUBMIT_EVERY_S):
            answer = ada.says("submit", "--parsable", "--hold", "-J", f"n{time.time_ns()}",
                              "--runtime", "command", "--", "/bin/true")  # fmt: skip
            if answer.is_ok:
                self.done.submitted.append(answer.stdout.strip())
            else:
                self.done.refused += 1
                self._look("submit --hold", answer)

    def _in_shared(self) -> None:
        """Use the directory: study in one of two, a trainer's logs in the other."""
        place = str(self._place)
        ada = {"user": "ada", "cwd": "/"}
        self._site.cluster.does(CONTROLLER, "install", "-d", "-m", "1777", place, **ada)
        time.sleep(1.0)  # for eve to plant her files, if she attacks now
        for name, text in (("s.yaml", _STUDY), ("trial.py", _TRIAL)):
            write = f"cat > {place}/{name}"
            self._site.cluster.does(CONTROLLER, "sh", "-c", write, stdin=text, **ada)
        if self._is_study:
            self._verb("study", "run", f"{STUDY}.yaml", "trial.py", "{lr}")
            self._verb("study", "status", f"{STUDY}.study")
        else:
            options = ("-J", TRAINER, "--runtime", "command", "--parsable")
            answer = self._verb("submit", *options, "--", "/bin/echo", "written")
            if answer.is_ok:
                self._ends(answer.stdout.strip())

    def _verb(self, *words: str) -> Completed:
        program = str(Path(sys.executable).with_name("bftrainer"))
        answer = self._site.cluster.run(
            *(CONTROLLER, program, *words),
            user="ada",
            cwd=str(self._place),
            env=self._site.ada.env,
            timeout_s=VERB_S,
        )
        verb = " ".join(words[:2])
        self.done.verbs[verb] = answer.returncode
        self._look(verb, answer)
        return answer

    def _look(self, what: str, said: Completed) -> None:
        text = said.stdout + said.stderr
        if said.timed_out:
            self.done.hanging.append(what)
        elif "Traceback" in text or "\x1b" in text:
            self.done.ugly.append(f"{what}: {text[-300:]!r}")

    def _ends(self, trainer_id: str) -> None:
        end_s = time.monotonic() + VERB_S
        client = self._site.daemon.client
        while not client.trainer(trainer_id).record.state.is_final:
            if time.monotonic() > end_s:
                client.cancel(trainer_id, now=True)
                self.done.hanging.append(f"trainer in a shared directory: {trainer_id}")
                return
            time.sleep(0.5)


def marks(site: Site) -> list[str]:
    """Lines that show that code of eve's ran as another, or that a link of hers was followed."""
    text = site.cluster.run(CONTROLLER, "cat", str(SHARED / "marks"), str(CANARY)).stdout
    return [line for line in text.splitlines() if line != "precious"]


def prepare(site: Site) -> None:
    """Make the directory for all, and the file of ada's that eve links to."""
    site.cluster.does(CONTROLLER, "install", "-d", "-m", "1777", str(SHARED))
    site.cluster.does(CONTROLLER, "sh", "-c", f"echo precious > {CANARY}", user="ada")
