"""Eve's process on a host: reads what to do from standard input, a word a line; see ``eve``.

Her attacks run in processes of their own, so that the processor time of each is known, and the
same time can be burnt in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _bench.torture.attack import LIAR, NAMES, ONLY_FLOODS, Attack, Attacker, Burner
from _bench.torture.eve import Ended, Setup
from _bench.torture.floods import Flooder
from _bench.torture.jobs import submit
from _bench.torture.pairs import Racer
from _bench.torture.plants import Plants
from _bench.torture.ports import Ports, Stranger
from _bench.torture.socket_user import SocketUser
from _bench.torture.talkers import LINES, REPORTS, Asker, Talker
from _bench.waiting import wait_until

STOLEN = Path.home() / "stolen"
PILOTS = Path.home() / ".bftrainer" / "pilots"
PATIENCE_S = 180.0


class OnHost:
    """What she does on one host."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._attacks: list[Attack] = []
        self._running: list[Attacker] = []
        self._shares: dict[str, float] = {}
        self._began_s, self._seed, self._is_burning = 0.0, 0, False
        self._own = self._spared = ""

    def prepare(self) -> None:
        """On the daemon's host: get a pilot and steal its key before its agent removes it."""
        if not self._is_daemons:
            return
        from bftrainer.api.client import Client  # noqa: PLC0415 - on one host only

        self._trainer("own")
        client = Client(Path(self._setup.socket))
        wait_until(_steal, "a key of hers", patience_s=PATIENCE_S, interval_s=0.01)
        (self._spared,) = wait_until(
            lambda: client.trainer(self._own).observed_nodes,
            "her trainer runs",
            patience_s=PATIENCE_S,
        )

    def stop(self) -> None:
        """Stop the agents of hers that are here."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"trainers.agent" in (entry / "cmdline").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGSTOP)

    def arm(self) -> None:
        """Make ready all attacks that are wanted here."""
        if self._is_daemons:
            self._verb("cancel", "--now", self._own)
            self._trainer("flood")  # it waits for a pilot again and again
        names = self._setup.only or NAMES
        attacks = tuple(self._all())
        if unlisted := [attack.name for attack in attacks if attack.name not in NAMES]:
            raise ValueError(f"attacks that --only cannot choose: {', '.join(unlisted)}")
        self._attacks = [attack for attack in attacks if attack.name in names]

    @property
    def _is_daemons(self) -> bool:
        return self._setup.host == next(iter(self._setup.addresses))

    def _all(self) -> Iterator[Attack]:
        setup = self._setup
        ports = Ports(setup.host, setup.addresses, setup.victim)
        racer = Racer(ports)
        yield Attack(name="pairs", once=racer.race, pause_s=0.0, end=racer.end)
        yield Attack(name="ports", once=Stranger(ports).send, pause_s=0.3)
        if self._is_daemons:
            from _bench.torture.agents import Liar  # noqa: PLC0415 - on one host only
            from _bench.torture.submissions import Submitter  # noqa: PLC0415 - on one host only

            odd = Submitter(Path(setup.socket), Path.home() / "odd", setup.n_nodes)
            yield Attack(name="sbatch", once=submit, pause_s=0.7)
            yield Attack(name="submissions", once=odd.submit, pause_s=0.3, end=odd.end)
            yield Attack(name="socket", once=SocketUser(setup.socket).go_on, pause_s=0.2)
            flooder = Flooder(self._spared)
            yield Attack(name="output", once=flooder.flood, pause_s=0.003, end=flooder.end)
            yield Attack(name="plants", once=Plants().plant, pause_s=0.05)
            liar = Liar(STOLEN, setup.trainer)
            yield Attack(name=LIAR, once=liar.lie, pause_s=0.5)
            yield Attack(name="asking", once=Asker(setup.socket).ask, pause_s=0.0)
            for name, script in (("reports", REPORTS), ("lines", LINES)):
                talker = Talker(setup.socket, name, script)
                yield Attack(name=name, once=talker.talk, pause_s=1.0, end=talker.end)

    def attack(self, name: str = "") -> None:
        """Begin one attack, or all but those that are floods alone."""
        if name:
            attacks = [attack for attack in self._attacks if attack.name == name]
        else:
            attacks = [attack for attack in self._attacks if attack.name not in ONLY_FLOODS]
        self._begin(attacks)

    def burn(self) -> None:
        """Use as much processor time as the last attack, by processes of the same number."""
        self._begin([Attack(name=name, once=Burner(share).burn, pause_s=0.0)
                     for name, share in self._shares.items()])  # fmt: skip
        self._is_burning = True

    def _begin(self, attacks: list[Attack]) -> None:
        self._seed += 1
        self._is_burning = False
        self._running = [Attacker(attack, self._seed) for attack in attacks]
        self._began_s = time.monotonic()

    def rest(self) -> dict[str, Any]:
        """End what goes on; what it was."""
        span_s = time.monotonic() - self._began_s
        ended = {attacker.name: attacker.stop() for attacker in self._running}
        self._running = []
        if not self._is_burning:
            self._shares = {name: cpu_s / span_s for name, (cpu_s, _) in ended.items()}
        return {
            name: asdict(Ended(cpu_s=cpu_s, answers=dict(answers)))
            for name, (cpu_s, answers) in ended.items()
        }

    def _trainer(self, name: str) -> None:
        self._own = self._verb("submit", "--parsable", "-J", name, "--runtime", "command", "--",
                               "/bin/sleep", "1000000")  # fmt: skip

    def _verb(self, *words: str) -> str:
        argv = (sys.executable, "-m", "bftrainer", *words)
        env = {**os.environ, "BFTRAINER_SOCKET": self._setup.socket}
        return subprocess.run(
            argv, env=env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()


def _steal() -> bool:
    """Link a key and what goes with it, before its agent removes both."""
    STOLEN.mkdir(exist_ok=True)
    for key in PILOTS.glob("*/p*/agent.key"):
        with contextlib.suppress(OSError):
            os.link(key, STOLEN / key.name)
            os.link(key.with_name("agent.json"), STOLEN / "agent.json")
            return True
    return False


def main() -> None:
    """Do what is said until nothing is said any more."""
    on_host = OnHost(Setup(**json.loads(sys.argv[1])))
    for line in sys.stdin:
        try:
            word, *arguments = line.split(maxsplit=1)
            answer = getattr(on_host, word)(*(argument.strip() for argument in arguments)) or {}
        except Exception:  # noqa: BLE001 - told to whoever asked
            answer = {"problem": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
    with contextlib.suppress(RuntimeError):
        on_host.rest()


if __name__ == "__main__":
    main()
