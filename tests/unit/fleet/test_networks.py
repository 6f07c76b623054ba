"""What doctor says of the way to the nodes, and the firewall rules it prints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bftrainer.batch import site_inspector
from bftrainer.batch.addresses import host_addresses
from bftrainer.batch.firewall import rules
from bftrainer.fleet.pilots.vain import LATE_S, LateAgents
from bftrainer.fleet.wire import listener
from bftrainer.fleet.wire.listener import Surroundings
from bftrainer.journal.projection import PilotState
from bftrainer.model.errors import UsageError
from bftrainer.model.site import NOTHING, Measured

NODES = ["10.77.0.11", "10.77.0.12", "10.77.0.13", "fd77::b"]
CHOSEN = (32768, 60999)


def test_rules_of_nftables() -> None:
    text = rules("nftables", NODES, ports="21000-21100", chosen=CHOSEN)
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        (
            "add rule inet filter input ip saddr { 10.77.0.11, 10.77.0.12/31 } "
            "tcp dport 21000-21100 accept"
        ),
        "add rule inet filter input ip6 saddr { fd77::b } tcp dport 21000-21100 accept",
        (
            "add rule inet filter input ip saddr { 10.77.0.11, 10.77.0.12/31 } "
            "tcp dport { 21000-21100, 32768-60999 } accept"
        ),
        (
            "add rule inet filter input ip6 saddr { fd77::b } "
            "tcp dport { 21000-21100, 32768-60999 } accept"
        ),
    ]


def test_rules_of_firewalld_and_of_networks_of_the_policy() -> None:
    text = rules(
        "firewalld",
        NODES,
        ports="41000-41100",
        chosen=CHOSEN,
        control="10.0.0.0/8",
        training="fd78::/64",
    )
    assert [line for line in text.splitlines() if line[0] != "#"] == [
        (
            'firewall-cmd --permanent --add-rich-rule=\'rule family="ipv4" source '
            'address="10.0.0.0/8" port port="41000-41100" protocol="tcp" accept\''
        ),
        "firewall-cmd --reload",
        (
            'firewall-cmd --permanent --add-rich-rule=\'rule family="ipv6" source '
            'address="fd78::/64" port port="32768-60999" protocol="tcp" accept\''
        ),
        "firewall-cmd --reload",
    ]


@pytest.mark.parametrize(
    "wrong", [{"ports": ""}, {"nodes": []}, {"control": "ib0"}, {"training": "ib0"}]
)
def test_there_are_no_rules_without_ports_or_addresses(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"nodes": NODES, "ports": "41000-41100", "chosen": CHOSEN, **wrong}
    with pytest.raises(UsageError, match="BFT-1316"):
        rules("nftables", given.pop("nodes"), **given)


def test_the_directory_of_pilots_is_doubted_on_the_disk_of_the_system(tmp_path: Path) -> None:
    here = tmp_path / "not" / "there"
    (found,) = site_inspector.findings(here, NOTHING, root=tmp_path)
    assert found.code == "BFT-1315"
    assert site_inspector.findings(here, Measured(start_s=2.0), root=tmp_path) == ()
    assert site_inspector.findings(here, NOTHING, root=Path("/proc")) == ()


def test_findings_of_networks(tmp_path: Path) -> None:
    around = Surroundings(own=host_addresses(), towards=(), named=(), has_others=True)

    def codes(around: Surroundings, **given: Any) -> list[str]:
        usual: dict[str, Any] = {"control_network": "", "pilots_dir": None, "late": ()}
        asked = {**usual, "measured": Measured(start_s=1.0), **given}
        return [one.code for one in listener.findings(around, **asked)]

    assert codes(around, control_network="nosuch0") == ["BFT-1313"]
    assert codes(around, late=["Its job 1 runs."])[-1] == "BFT-1314"
    own = (one for one in around.own if one.address.is_loopback)
    alone = Surroundings(own=tuple(own), towards=(), named=(), has_others=True)
    assert codes(alone) == ["BFT-1312"]
    assert tmp_path


def test_an_agent_that_has_not_connected_is_named_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def pilot(state: PilotState, start_s: float | None, **more: Any) -> Any:
        record = SimpleNamespace(state=state, job_id="17", node=more.pop("node"))
        return SimpleNamespace(record=record, start_s=start_s, is_leaving=False, **more)

    pilots = {
        "p1": pilot(PilotState.REQUESTED, 100.0, node="n1"),
        "p2": pilot(PilotState.REQUESTED, None, node="n2"),
        "p3": pilot(PilotState.RUNNING, 100.0, node="n3"),  # of a daemon before
        "p4": pilot(PilotState.REQUESTED, 100.0 + LATE_S, node="n4"),
    }
    agents: Any = SimpleNamespace(
        connected={}, offered=("tcp://10.1.0.5:41230", "tcp://[fd77::3]:41230")
    )
    book: Any = SimpleNamespace(pilots=pilots)
    late = LateAgents(book, agents, lambda: 100.0 + LATE_S)
    assert late.by_node() == {
        "n1": f"Its job 17 runs on n1 since {LATE_S:.0f} s, its agent has not connected to "
        "10.1.0.5:41230, [fd77::3]:41230."
    }
    late.look()
    late.look()
    assert caplog.text.count("BFT-1314") == 1
    agents.connected = {"p1": object()}
    assert late.by_node() == {}
    late.look()
    agents.connected = {}
    late.look()
    assert caplog.text.count("BFT-1314") == 2
