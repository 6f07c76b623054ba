"""Plays one scenario on the stand-in and on a real volclava at once, and compares."""

from __future__ import annotations

import contextlib
import difflib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from lsf_adapters.testcluster import LsfConfig, LsfTestCluster, Parameters, Profile
from lsf_adapters.testcluster.config import standard_queues
from tests.support.volclava.cluster import RealVolclava
from tests.support.volclava.playing import Cluster, Player

# The stand-in runs jobs as accounts of this machine; these exist everywhere.
STAND_IN_USERS: Final = {"alice": "nobody", "bob": "games", "bft": "bin", "lsfadm": "man"}


@contextlib.contextmanager
def stand_in() -> Iterator[LsfTestCluster]:
    """The stand-in, as like the real cluster as it can be, in a directory of its own."""
    directory = Path(tempfile.mkdtemp(prefix="bft-lsf-", dir="/tmp"))
    directory.chmod(0o755)
    normal, pilots = standard_queues("volclava")
    users = (STAND_IN_USERS["lsfadm"], STAND_IN_USERS["bft"])
    config = LsfConfig(
        directory=directory / "lab",
        dialect="volclava",
        profile=Profile.LAB2,
        root_may_submit=False,
        queues=(normal, replace(pilots, users=users)),
        parameters=Parameters(administrators=("root", STAND_IN_USERS["lsfadm"])),
    )
    try:
        with LsfTestCluster(config) as cluster:
            scratch = cluster.directory / "scratch"
            scratch.mkdir()
            scratch.chmod(0o1777)
            yield cluster
    finally:
        shutil.rmtree(directory)


def player_on_stand_in(cluster: LsfTestCluster) -> Player:
    """A player whose accounts are those of this machine."""
    return _player(cluster, STAND_IN_USERS, cluster.config.events_file)


def player_on_real(cluster: RealVolclava) -> Player:
    """A player whose accounts are the lab's."""
    return _player(cluster, {}, cluster.config.events_file)


def _player(cluster: Cluster, users: Mapping[str, str], events_file: Path) -> Player:
    scratch = cluster.directory / "scratch"
    return Player(cluster=cluster, users=users, scratch=scratch, events_file=events_file)


def play_both(scenario: Callable[[Player], None], players: Sequence[Player]) -> None:
    """Play a scenario on all clusters at the same time."""

    def play(player: Player) -> None:
        try:
            player.clear()
            scenario(player)
        except AssertionError as problem:
            listed = player.quietly("bjobs", "-a", "-u", "all", "-w").stdout
            played = "\n".join(player.lines[-20:])
            problem.add_note(f"on {type(player.cluster).__name__}, after\n{played}\n{listed}")
            raise

    with ThreadPoolExecutor(len(players)) as pool:
        for played in [pool.submit(play, player) for player in players]:
            played.result()


def differences(stand_in: Sequence[str], real: Sequence[str]) -> list[str]:
    """The lines that differ: ``-`` of the stand-in, ``+`` of the real one, after their command."""
    found: list[str] = []
    command = ""
    for line in difflib.ndiff(stand_in, real):
        mark, text = line[:1], line[2:]
        if mark == "?":
            continue
        if text.startswith(("[", "#")):
            command = text
        if mark in "+-":
            if command and command not in found[-1:] and command != text:
                found.append(f"  {command}")
                command = ""
            found.append(f"{mark} {text}")
    return found


def outside(
    measured: Mapping[str, Sequence[float]], allowed: Mapping[str, tuple[float, float]]
) -> list[str]:
    """The latencies that are not within what was measured on real clusters."""
    return [
        f"{what}: {value_s:.2f} s, not within {low:g} to {high:g} s"
        for what, values in measured.items()
        for low, high in [allowed[what]]
        for value_s in values
        if not low <= value_s <= high
    ]
