"""What one user has a real daemon write, its decisions among it: no more than the policy says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerChange, TrainerSpec
from milp.problem import Curve
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.incompressible import incompressible
from tests.support.other_users import needs_root
from tests.support.site import Site, start_warm_server

pytestmark = [pytest.mark.long, needs_root]

LIMIT_MB = 5
MB = 1_000_000
POLICY = f"""\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
submissions_per_minute_per_user: 100000
written_mb_per_day_per_user: {LIMIT_MB}
"""
MOST_CALLS = 100_000
# Of trainers that wait for more nodes than there are, so that each decision tells of all of them.
N_WAITING = 20
LONG_CURVE = Curve(
    sizes=tuple(range(9, 109)), samples_per_s=tuple(float(size) for size in range(9, 109))
)


def submits_and_cancels(site: Site, spec: TrainerSpec, draws: random.Random) -> None:
    held = replace(spec, hold=True, environment=incompressible(120_000, draws))
    site.client.cancel(site.client.submit(held).record.trainer_id)


def waits_and_cancels(site: Site, spec: TrainerSpec, draws: random.Random) -> None:
    waiting = replace(spec, environment=incompressible(4_000, draws), n_min=9, n_max=308)
    site.client.cancel(site.client.submit(waiting).record.trainer_id)


def changes_weights(site: Site, spec: TrainerSpec, draws: random.Random) -> None:
    del spec
    trainer_id = f"t{draws.randint(1, N_WAITING)}"
    site.client.change(trainer_id, TrainerChange(weight=draws.uniform(1.0, 2.0)))


@pytest.mark.parametrize(
    "verb",
    [submits_and_cancels, waits_and_cancels, changes_weights],
    ids=lambda verb: verb.__name__,
)
def test_the_state_directory_grows_by_no_more_than_the_limit(
    verb: Callable[[Site, TrainerSpec, random.Random], None], tmp_path: Path
) -> None:
    draws = random.Random(1)  # noqa: S311 - no secret
    with start_warm_server(tmp_path / "local", n_nodes=2, cycle_s=0.5) as server:
        sidecar = DaemonProcess(
            tmp_path / "state",
            batch_system="local",
            batch_options={"socket": str(server.socket_path)},
            policy=POLICY,
        )
        site = Site(tmp_path, server, sidecar)
        try:
            sidecar.start()
            spec = trainer_spec(tmp_path / "one", SLOW)
            waiting = replace(spec, n_min=9, n_max=308, curve=LONG_CURVE)
            for number in range(N_WAITING):
                place = str(tmp_path / f"waiting-{number}")
                site.client.submit(replace(waiting, checkpoint_dir=place))
            before = written_bytes(sidecar.state_dir)
            with pytest.raises(BftError, match="BFT-1086"):  # noqa: PT012 - until it is refused
                for _ in range(MOST_CALLS):
                    verb(site, spec, draws)
            assert len(site.client.trainers()) >= N_WAITING
        finally:
            sidecar.stop()
    growth = written_bytes(sidecar.state_dir) - before
    assert MB / 4 < growth <= LIMIT_MB * MB


def written_bytes(state_dir: Path) -> int:
    """Return the bytes of all files of a daemon's state."""
    return sum(path.stat().st_size for path in state_dir.rglob("*") if path.is_file())
