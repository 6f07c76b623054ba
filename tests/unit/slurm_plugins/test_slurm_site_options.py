"""Options of the site for pilots' sbatch: what is passed on, and which nodes it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import OptionError, PilotRequest
from bftrainer.model.cluster import NodeState, Reservation
from bftrainer.site.submit import helper
from bftrainer.site.submit.service_files import helper_files
from lsf_adapters import adapter as lsf
from slurm_plugins import adapter
from slurm_plugins.site_options import MOST_OPTIONS, PilotNodes, checked
from tests.support.snapshots import T0, idle_nodes, with_state
from tests.unit.site.test_submit_helper import OPTIONS, SUBMIT

PASSED = (
    "--comment=preempt me",
    "--constraint=ib&new",
    "--wckey=a",
    "--gres-flags=enforce-binding",
)


def test_what_the_site_says_is_an_option_of_every_pilot() -> None:
    system = adapter.create({"sbatch_options": list(PASSED), "account": "lab"})
    request = PilotRequest(
        pilot_id="p000001",
        node="n1",
        time_limit_s=600.0,
        agent_argv=("true",),
        log_path=Path("/tmp/p000001/log"),
        environment={},
    )
    argv = system.launcher._argv(request, 10, 30.0)
    assert set(PASSED) <= set(argv)
    assert "--account=lab" in argv


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--partition=x"], "decides about --partition of its pilots; use --partition of up"),
        (["--gres=gpu:1"], "use --lend of up, lend of the policy"),
        (["--job=x"], "--job-name"),  # sbatch completes it
        (["--no"], "--no-requeue"),
        (["--array=0-9"], "--array"),
        (["--ntasks-per-gpu=2"], "--ntasks-per-gpu"),
        (["--get-user-env"], "--get-user-env"),
        (["--comment=a\nb"], "in one line"),
        (["--comment=a\x00"], "in one line"),
        (["--comment=" + "x" * 257], "in one line"),
        (["-C", "ib"], "'-C'"),
        (["--comment=a", "--comment=b"], "given twice"),
        ([f"--x{chr(97 + n)}" for n in range(MOST_OPTIONS + 1)], "at most"),
    ],
)
def test_what_pilots_rely_on_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        checked(words)
    assert why in str(caught.value)
    with pytest.raises(OptionError, match="BFT-1220"):
        adapter.create({"sbatch_options": words})


@pytest.mark.parametrize("name", ["slot_gpus", "slot_cpus", "slot_memory_mb"])
def test_options_of_fixed_shares_name_the_key_that_takes_their_place(name: str) -> None:
    with pytest.raises(OptionError, match="BFT-1461") as caught:
        adapter.create({"sbatch_options": list(PASSED), name: 1})
    [problem] = caught.value.problems
    assert problem.path == (name,)
    assert "lend: auto" in problem.next_step


def test_lsf_has_no_such_option_and_names_those_it_has() -> None:
    """LSF's bsub has no general counterpart there: project and user_group are what exists."""
    with pytest.raises(OptionError, match="BFT-12") as caught:
        lsf.create({"sbatch_options": ["--comment=x"]})
    assert "project, user_group" in caught.value.problems[0].next_step


def test_nodes_without_the_features_are_none_of_pilots() -> None:
    nodes = idle_nodes(2)
    assert not PilotNodes.of(PASSED).request.is_met_by(nodes[0])
    several = PilotNodes.of(("--constraint=[a*1&b*1]",))  # of several nodes: Slurm decides
    assert several.request.is_met_by(nodes[0])


@pytest.mark.parametrize(
    ("begins_s", "free"), [(-60.0, ["n1"]), (60.0, []), (-7200.0, [])], ids=["now", "later", "over"]
)
def test_only_the_open_reservation_of_ones_own_has_free_nodes(
    begins_s: float, free: list[str]
) -> None:
    own = Reservation(name="ours", start_s=T0 + begins_s, end_s=T0 + begins_s + 3600, nodes=("n1",))
    other = Reservation(name="theirs", start_s=T0, end_s=T0 + 10, nodes=("n2",))
    seen = with_state(idle_nodes(3), NodeState.RESERVED, "n1", "n2")
    nodes, left = PilotNodes.of(("--reservation=ours",)).within(seen, (own, other), T0)
    assert [node.name for node in nodes if node.state is NodeState.IDLE] == free
    assert left is not None
    assert [(one.name, one.start_s) for one in left] == [
        ("theirs", T0),
        ("the end of ours", own.end_s),
    ]
    nodes, left = PilotNodes.of(("--reservation=ours",)).within(seen, None, T0)
    assert (left, {node.state for node in nodes}) == (None, {NodeState.RESERVED})
    assert PilotNodes().within(seen, (own, other), T0) == (seen, (own, other))


def test_the_submit_helper_takes_only_what_root_allows_word_by_word() -> None:
    asked = json.dumps({**SUBMIT, "options": [*OPTIONS, *PASSED]}).encode()
    assert set(PASSED) < set(helper.parse(asked, frozenset(PASSED)).options)
    for allowed in (frozenset(), frozenset(PASSED[1:]), frozenset({"--comment"})):
        with pytest.raises(helper.NotAllowed, match="not allowed"):
            helper.parse(asked, allowed)
    twice = json.dumps({**SUBMIT, "options": [*OPTIONS, "--account=other"]}).encode()
    with pytest.raises(helper.NotAllowed, match="given twice"):
        helper.parse(twice, frozenset({"--account=other"}))


def test_its_configuration_for_root_lists_the_options_of_the_policy() -> None:
    options = {"submit_helper": "/run/helper", "sbatch_options": list(PASSED)}
    files = helper_files(
        options, partition="bf", account="bft", conf=Path("/etc/s"), program="/opt/bin/bftrainer"
    )
    (config,) = [json.loads(one.text) for one in files if one.name == "submit-helper.json"]
    assert config["options"] == list(PASSED)
