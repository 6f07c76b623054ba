"""The stand-in beside a real volclava: the same steps, the same answers, the same delays.

Compared are exit statuses, streams, text (dates, numbers and widths of columns hidden; the numbers
of bhosts and bqueues not), the order of every job's states, and latencies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from lsf_adapters.testcluster import LsfTestCluster
from tests.integration.volclava_fixtures import needs_volclava, volclava
from tests.support.volclava import RealVolclava, beside
from tests.support.volclava.playing import Player
from tests.support.volclava.scenario import SCENARIOS

pytestmark = needs_volclava

__all__ = ["volclava"]

# Seconds: the smallest and largest that volclava 2.2 was seen to take at MBD_SLEEP_TIME=2, on two
# cores with a load of 0.5 to 14, widened a little. Both clusters have to stay within.
MEASURED_S: Final = {
    "bsub returns": (0.0, 0.5),
    # A host that does not take a job at once is tried again after 5 s.
    "bsub: runs on an idle host": (0.0, 8.0),
    "bkill -s KILL: the job that waits for the host runs": (0.2, 10.0),
    "bkill: EXIT in bjobs": (0.0, 5.0),
    "bkill of a deaf job: USR1": (0.0, 1.0),
    "bkill of a deaf job: INT": (0.0, 1.0),
    "bkill of a deaf job: TERM": (9.5, 12.0),
    "bkill of a deaf job: gone": (19.5, 26.0),
    "-W 1: USR2": (58.5, 64.0),
    "dead machine: unreach": (90.0, 150.0),
    "dead machine: unavail": (90.0, 160.0),
    "daemons started: ok": (0.0, 90.0),
}

# What differs and is to stay so: scenario, line, why.
KNOWN: Final[tuple[tuple[str, re.Pattern[str], str], ...]] = ()


@pytest.fixture(scope="module")
def lsf_stand_in() -> Iterator[LsfTestCluster]:
    with beside.stand_in() as cluster:
        yield cluster


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_stand_in_answers_as_the_real_one(
    scenario: Callable[[Player], None], lsf_stand_in: LsfTestCluster, volclava: RealVolclava
) -> None:
    imitation, real = beside.player_on_stand_in(lsf_stand_in), beside.player_on_real(volclava)
    beside.play_both(scenario, (imitation, real))
    found = beside.differences(imitation.lines, real.lines)
    unknown = [line for line in found if not _is_known(scenario.__name__, line)]
    late = {
        name: beside.outside(player.latencies_s, MEASURED_S)
        for name, player in (("stand-in", imitation), ("volclava", real))
    }
    assert any(line[:1] in "+-" for line in unknown) is False, "\n".join(["", *unknown])
    assert late == {"stand-in": [], "volclava": []}
    assert set(imitation.latencies_s) == set(real.latencies_s)


def _is_known(scenario: str, line: str) -> bool:
    return any(where == scenario and pattern.search(line) for where, pattern, _ in KNOWN)
