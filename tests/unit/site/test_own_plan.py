"""What ``bftrainer up`` chooses from a site, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from bftrainer.cli.up import up
from bftrainer.model.errors import UsageError
from bftrainer.model.parts import Lend
from bftrainer.model.site import NodeLimit, OwnSite, Wish
from bftrainer.site.own.plan import policy_text, settings_for
from bftrainer.site.policy.load import load_policy

SITE = OwnSite(
    cluster="c1",
    partition="scavenge",
    n_nodes=40,
    preemption="REQUEUE",
    time_limit_s=86_400.0,
    time_limit_words="MaxTime of scavenge",
    batch_options={"pilot_partition": "scavenge", "is_own": True},
)


def _values(site: OwnSite, **wish: object) -> dict[str, object]:
    chosen = settings_for(site, Wish(**wish))  # type: ignore[arg-type]  # test values
    return {one.name: one.value for one in chosen}


def _with(**changes: object) -> OwnSite:
    return replace(SITE, **changes)  # type: ignore[arg-type]  # test values


def test_the_policy_is_one_that_the_daemon_reads(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(policy_text(settings_for(_with(grace_s=60.0), Wish(max_nodes=3))))
    path.chmod(0o600)
    policy = load_policy(path)
    assert (policy.max_nodes, policy.give_back, policy.reserve_nodes_per_type) == (3, False, 0)
    assert policy.batch_options["grace_s"] == 60.0
    assert policy.batch_options["pilot_partition"] == "scavenge"


@pytest.mark.parametrize("lend", list(Lend))
def test_what_is_lent_is_as_wished(lend: Lend, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(policy_text(settings_for(SITE, Wish(lend=lend))))
    path.chmod(0o600)
    assert load_policy(path).lend is lend
    assert Wish().lend is Lend.AUTO


@pytest.mark.parametrize("name", ["--gpus-per-pilot", "--cpus-per-pilot", "--mem-per-pilot"])
def test_options_of_fixed_shares_name_the_one_that_takes_their_place(name: str) -> None:
    refusal = CliRunner().invoke(cli, ["up", name, "2"]).exception
    assert isinstance(refusal, UsageError)
    assert refusal.code == "BFT-1462"
    assert name in refusal.cause
    assert "--lend" in refusal.next_step
    assert name not in CliRunner().invoke(cli, ["up", "--help"]).output


@pytest.mark.parametrize(
    ("limits", "wanted", "nodes", "words"),
    [
        ((), None, 8, "default"),
        ((), 20, 20, "--max-nodes"),
        ((), 100, 40, "no more"),
        ((NodeLimit(n_nodes=5, words="MaxJobsPU=5 of QOS q"),), None, 5, "MaxJobsPU=5"),
        (
            (NodeLimit(n_nodes=5, words="five"), NodeLimit(n_nodes=2, words="two")),
            4,
            2,
            "two",
        ),
    ],
)
def test_the_least_limit_counts_and_is_named(
    limits: tuple[NodeLimit, ...], wanted: int | None, nodes: int, words: str
) -> None:
    first = settings_for(_with(limits=limits), Wish(max_nodes=wanted))[0]
    assert (first.name, first.value) == ("max_nodes", nodes)
    assert words in first.why


def test_a_limit_of_nothing_is_refused_with_its_name() -> None:
    none = (NodeLimit(n_nodes=0, words="MaxSubmit=0 of user ann in account lab"),)
    with pytest.raises(UsageError) as refused:
        settings_for(_with(limits=none), Wish())
    assert refused.value.code == "BFT-1284"
    assert "MaxSubmit=0 of user ann" in refused.value.cause


def test_the_time_limit_is_the_sites_where_that_is_shorter() -> None:
    assert _values(SITE)["pilot_time_limit_s"] == 4 * 3600.0
    assert _values(SITE, time_limit_s=7200.0)["pilot_time_limit_s"] == 7200.0
    assert _values(_with(time_limit_s=1800.0))["pilot_time_limit_s"] == 1800.0
    with pytest.raises(UsageError, match="BFT-1284"):
        settings_for(_with(time_limit_s=60.0), Wish())


def test_networks_and_ports_are_those_that_are_named(tmp_path: Path) -> None:
    network = {"control_network", "training_network", "ports"}
    assert not network & _values(_with()).keys()
    path = tmp_path / "policy.yaml"
    path.write_text(policy_text(settings_for(_with(), Wish(network="ib0", ports="21000-21100"))))
    policy = load_policy(path)
    assert (policy.control_network, policy.training_network) == ("ib0", "ib0")
    assert policy.ports == "21000-21100"


def test_without_a_grace_time_there_is_no_option_for_it() -> None:
    options = _values(SITE)["batch_options"]
    assert isinstance(options, dict)
    assert "grace_s" not in options


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("240", 14_400),
        ("30:30", 1_830),
        ("4:00:00", 14_400),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("0-0:10:05", 605),
    ],
)
def test_time_limits_are_written_as_for_sbatch(text: str, seconds: float) -> None:
    context = click.Context(cli, **cli.context_settings)  # as ever: click keeps up's -h
    assert up.make_context("up", ["--time", text], parent=context).params["time_limit_s"] == seconds
    with pytest.raises(click.BadParameter, match="as for sbatch"):
        up.make_context("up", ["--time", "4h"], parent=context)
