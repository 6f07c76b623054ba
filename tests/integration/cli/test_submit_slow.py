"""A user's sbatch that takes too long, on a real Slurm: the pilot lives on, and there is one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.integration.daemon.test_three_users import submit, training
from tests.support import submit_helper
from tests.support.hung import hung
from tests.support.other_users import needs_root
from tests.support.shared_site import SharedSite, shared_site
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, needs_root]

SAYS_LATE = '#!/bin/sh\njob=$({sbatch} "$@")\nsleep 35\necho "$job"\n'
SUBMITS_NOTHING = "#!/bin/sh\nexec sleep 600\n"
KEPT_OPEN = '#!/bin/sh\n{sbatch} "$@"\nsetsid sleep 60 &\n'


GRACE_S = 60


@pytest.fixture(scope="module")
def site() -> Iterator[SharedSite]:
    """A site whose helper waits for 8 s, and whose pilots have a GraceTime."""
    with (
        pytest.MonkeyPatch.context() as patch,
        shared_site("bfts", "bftu", n_nodes=2, grace_time_s=GRACE_S) as made,
    ):
        hasty = str(submit_helper.hasty(made.root / "hasty.py"))
        patch.setattr(submit_helper, "PROGRAM", hasty)
        made.start(grace_s=GRACE_S)
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


def pilots(site: SharedSite) -> list[str]:
    return site.cluster.command("squeue", "-h", "-p", "bf", "-o", "%i").stdout.split()


def ends(site: SharedSite, trainer_id: str) -> None:
    """Cancel a trainer; its pilots are given back."""
    site.client.cancel(trainer_id, now=True)
    wait_for(lambda: not pilots(site), what="its pilots end")


def test_a_pilot_whose_sbatch_does_not_answer_in_time_lives_on(site: SharedSite) -> None:
    """Seen failing before: each pilot was ended as unknown, and another one asked for, for ever."""
    alice, _ = site.people
    uses(site, SAYS_LATE)
    one = training(site, alice, submit(alice, "late", "--nodes", "1:1"))
    jobs = pilots(site)
    wait_for(lambda: "not known whether" in log(site), what="the helper gives up")
    first = site.client.trainer(one.trainer_id).record.progress.step
    wait_for(
        lambda: site.client.trainer(one.trainer_id).record.progress.step > first + 20,
        what="it trains on",
    )
    view = site.client.trainer(one.trainer_id)
    assert (view.observed_nodes, view.record.failures) == ((one.node,), 0)
    assert (len(jobs), pilots(site)) == (1, jobs)
    assert "is not in the journal" not in log(site)


def test_such_a_pilot_leaves_in_order_within_the_grace_time(site: SharedSite) -> None:
    """Passes before where sbatch answers: Slurm preempts, as there is no daemon."""
    (folder,) = (site.people[0].home / ".bftrainer" / "pilots").glob("*/p*")
    site.stop()
    job = site.cluster.command(
        *("sbatch", "--parsable", "-p", "batch", "-N", "2", "--exclusive", "-t", "1"),
        *("-o", "/dev/null", "--wrap=sleep 1"),
    ).stdout.strip()
    wait_for(lambda: "left: signal" in (folder / "agent.log").read_text(), what="it leaves")
    wait_for(
        lambda: job not in site.cluster.command("squeue", "-h", "-o", "%i").stdout.split(),
        what="the ordinary job ends",
    )
    site.start(grace_s=GRACE_S)
    ends(site, "t1")


def test_a_user_who_keeps_the_output_of_sbatch_open_delays_nothing(site: SharedSite) -> None:
    """Seen failing before: their pilots were ended each time after 28 s."""
    alice, _ = site.people
    uses(site, KEPT_OPEN)
    n_unknown = log(site).count("not known whether")
    one = training(site, alice, submit(alice, "open", "--nodes", "1:1"))
    wait_for(
        lambda: site.client.trainer(one.trainer_id).record.progress.step > 20, what="it trains"
    )
    assert log(site).count("not known whether") == n_unknown
    ends(site, one.trainer_id)


@pytest.mark.long
def test_a_home_that_hangs_delays_nobody_else(site: SharedSite) -> None:
    """Passes before: each user's requests have threads and helpers of their own."""
    alice, bob = site.people
    with hung(alice.home / ".bftrainer"):
        hangs = submit(alice, "hangs", "--nodes", "1:1")
        one = training(site, bob, submit(bob, "other", "--nodes", "1:1"))
        wait_for(
            lambda: "in time" in " ".join(site.client.explain(hangs).sentences),
            what="she is told",
        )
        ends(site, one.trainer_id)
    ends(site, hangs)


@pytest.mark.long
def test_a_pilot_that_was_never_submitted_leaves_nothing(site: SharedSite) -> None:
    """Seen failing before: its key and configuration stayed in the home."""
    alice, _ = site.people
    place = alice.home / ".bftrainer" / "pilots"
    uses(site, SUBMITS_NOTHING)
    before = set(place.glob("*/p*"))
    submit(alice, "never", "--nodes", "1:1")
    wait_for(lambda: set(place.glob("*/p*")) - before, what="a folder is made")
    (made,) = set(place.glob("*/p*")) - before
    assert (made / "agent.key").exists()
    wait_for(lambda: not made.exists(), what="it is known that there is no job")
