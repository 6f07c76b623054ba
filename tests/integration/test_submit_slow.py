"""A user's sbatch that takes too long, on a real Slurm: the pilot lives on, and there is one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.integration.test_three_users import submit, training
from tests.support import submit_helper
from tests.support.other_users import needs_root
from tests.support.shared_site import POLICY, SharedSite, shared_site
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, needs_root]

SAYS_LATE = "#!/bin/sh\njob=$({sbatch} \"$@\")\nsleep 35\necho \"$job\"\n"
SUBMITS_NOTHING = "#!/bin/sh\nexec sleep 600\n"
KEPT_OPEN = "#!/bin/sh\n{sbatch} \"$@\"\nsetsid sleep 60 &\n"


@pytest.fixture(scope="module")
def site() -> Iterator[SharedSite]:
    patch = pytest.MonkeyPatch()
    with shared_site("bfts", n_nodes=2) as made, patch.context():
        patch.setattr(submit_helper, "PROGRAM", str(submit_helper.hasty(made.root / "hasty.py")))
        made.start(f"{POLICY}hold_idle_s: 60\n".replace("hold_idle_s: 0.5\n", ""))
        yield made


def uses(site: SharedSite, text: str) -> None:
    """Let the helper start this in place of sbatch."""
    sbatch = site.root / "sbatch"
    sbatch.write_text(text.format(sbatch=shutil.which("sbatch")))
    sbatch.chmod(0o755)
    config = site.root / "submit-helper.json"
    submit_helper.write_config(config, **{**json.loads(config.read_text()), "sbatch": str(sbatch)})


def log(site: SharedSite) -> str:
    return (site.service.home / "daemon.log").read_text()


def test_a_pilot_whose_sbatch_does_not_answer_in_time_lives_on(site: SharedSite) -> None:
    """Seen failing before: each pilot was ended as unknown, and another one asked for, for ever."""
    (alice,) = site.people
    uses(site, SAYS_LATE)
    one = training(site, alice, submit(alice, "late", "--nodes", "1:1"))
    wait_for(lambda: "not known whether" in log(site), what="the helper gives up")
    first = site.client.trainer(one.trainer_id)
    wait_for(
        lambda: site.client.trainer(one.trainer_id).record.progress.step
        > first.record.progress.step + 20,
        what="it trains on",
    )
    view, queue = site.client.trainer(one.trainer_id), ("squeue", "-h", "-p", "bf", "-o", "%i")
    assert (view.observed_nodes, view.record.failures) == ((one.node,), 0)
    assert len(site.cluster.command(*queue).stdout.split()) == 1
    assert "is not in the journal" not in log(site)
    assert not site.client.explain(one.trainer_id).sentences or True
    alice.does("cancel", "--now", one.trainer_id)
