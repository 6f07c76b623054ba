"""Which addresses are offered, which of them is taken, and on which ports is listened."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import random
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api import address
from bftrainer.batch.addresses import (
    HostAddress,
    endpoint_at,
    host_addresses,
    host_of,
    in_network,
    numeric,
    resolved,
    source_towards,
)
from bftrainer.elastic.process.store import StoreServer
from bftrainer.fleet.wire.endpoint import (
    AgentConfig,
    endpoints_in,
    first_answering,
    remember,
    remembered_port,
)
from bftrainer.fleet.wire.keys import generate_pair
from bftrainer.fleet.wire.listener import Surroundings, look_around, numeric_bind, place_of
from bftrainer.fleet.wire.router import CurveRouter
from bftrainer.ground import ports
from bftrainer.model.errors import BftError, UsageError
from bftrainer.site.policy.document import PolicyErrors
from bftrainer.site.policy.load import load_policy
from trainers.agent.main import data_address

OWN = tuple(
    HostAddress(interface, ipaddress.ip_address(text))
    for interface, text in (
        ("lo", "127.0.0.1"),
        ("eth0", "198.18.9.3"),
        ("eth1", "10.77.0.3"),
        ("ib0", "10.78.0.3"),
        ("lo", "::1"),
        ("eth1", "fd77::3"),
    )
)
AROUND = Surroundings(
    own=OWN, towards=("10.77.0.3",), named=("127.0.1.1", "198.18.9.3"), has_others=True
)
ALL = ("10.77.0.3", "198.18.9.3", "10.78.0.3", "fd77::3")
MESSAGE_BYTES = 10_000


# ---- what the daemon offers ----------------------------------------------------------------


def test_all_addresses_are_offered_the_one_towards_nodes_first_then_those_of_the_name() -> None:
    place = place_of(AROUND)
    assert (place.bind_host, place.offered) == ("*", ALL)
    assert place_of(AROUND, bind="0.0.0.0").offered == ALL  # noqa: S104
    assert place_of(replace(AROUND, has_others=None)).offered == ALL


def test_what_is_given_is_offered() -> None:
    place = place_of(AROUND, bind="10.78.0.3")
    assert (place.bind_host, place.offered) == ("10.78.0.3", ("10.78.0.3",))
    place = place_of(AROUND, announced=("login.site", "203.0.113.7"))
    assert (place.bind_host, place.offered) == ("*", ("login.site", "203.0.113.7"))
    place = place_of(AROUND, bind="127.0.0.1", announced=("203.0.113.7",))  # a relay is there
    assert (place.bind_host, place.offered) == ("127.0.0.1", ("203.0.113.7",))


def test_a_network_restricts_what_is_offered() -> None:
    place = place_of(AROUND, network="10.78.0.0/16")
    assert (place.bind_host, place.offered) == ("10.78.0.3", ("10.78.0.3",))
    place = place_of(AROUND, network="eth1")
    assert (place.bind_host, place.offered) == ("*", ("10.77.0.3", "fd77::3"))
    for network in ("10.99.0.0/16", "ib1"):
        with pytest.raises(UsageError, match=r"BFT-1313.*10\.78\.0\.3 \(ib0\)"):
            place_of(AROUND, network=network)


def test_loopback_is_for_one_host() -> None:
    alone = replace(AROUND, has_others=False, towards=())
    place = place_of(alone)
    assert (place.bind_host, place.offered) == ("127.0.0.1", ("127.0.0.1",))
    assert place_of(alone, bind="127.0.0.1").offered == ("127.0.0.1",)
    assert place_of(replace(AROUND, has_others=None), bind="::1").offered == ("::1",)
    cut_off = replace(AROUND, own=OWN[:1], towards=(), named=())
    for around, bind in ((AROUND, "127.0.0.1"), (AROUND, "::1"), (cut_off, "")):
        with pytest.raises(UsageError, match="BFT-1312"):
            place_of(around, bind=bind)


def test_hosts_of_pilots_are_compared_with_our_addresses() -> None:
    assert look_around(()).has_others is None
    assert look_around(("no-such-host.invalid",)).has_others is None
    assert look_around(("127.0.0.1", "localhost")).has_others is False
    assert look_around(("127.0.0.1", "198.51.100.7")).has_others is True  # RFC 5737
    for one in host_addresses():
        assert look_around((str(one.address),)).has_others is False


# ---- addresses -----------------------------------------------------------------------------


def test_this_hosts_addresses_can_be_bound() -> None:
    found = host_addresses()
    assert HostAddress("lo", ipaddress.ip_address("127.0.0.1")) in found
    for one in found:
        family = socket.AF_INET6 if one.address.version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listening:
            listening.bind((str(one.address), 0))


def test_addresses_of_names_and_routes() -> None:
    assert source_towards("127.0.0.1") == "127.0.0.1"
    assert source_towards("no-such-host.invalid") == ""
    assert numeric("localhost") == "127.0.0.1"
    assert numeric_bind("*") == "*"
    assert resolved("fd77::3") == ["fd77::3"]
    with pytest.raises(UsageError, match="BFT-1306"):
        numeric_bind("no-such-host.invalid")
    for host in ("10.0.0.1", "fd77::3", "login"):
        assert host_of(endpoint_at(host, 41000)) == host
    assert in_network(OWN, "::/0") == ["::1", "fd77::3"]


def test_workers_use_the_network_of_the_policy_else_the_one_of_the_daemon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = AgentConfig(
        pilot_id="p1",
        daemon_endpoint="tcp://127.0.0.1:41000",
        daemon_public_key=generate_pair().public,
        key_file=Path("agent.key"),
        state_dir=Path(),
        node="n1",
    )

    def found(network: str, daemon: str = "tcp://127.0.0.1:41000") -> str:
        return data_address(config.model_copy(update={"network": network}), daemon)

    assert found("") == "127.0.0.1"
    assert found("lo", "tcp://no-such-host.invalid:41000") == "127.0.0.1"
    assert found("127.0.0.0/8") == "127.0.0.1"
    assert not caplog.text
    assert found("nosuch0") == "127.0.0.1"
    assert "BFT-1313" in caplog.text


# ---- which one is taken --------------------------------------------------------------------


def test_the_first_that_answers_with_the_right_key_is_taken() -> None:
    keys, ours = generate_pair(), generate_pair()

    async def run() -> None:
        def serving(pair: Any) -> CurveRouter:
            return CurveRouter(
                keys=pair,
                max_message_bytes=MESSAGE_BYTES,
                is_allowed=lambda key: key == ours.public,
                on_frame=lambda *_: None,
            )

        right, wrong = serving(keys), serving(generate_pair())
        port = int(right.start("*", 0).rpartition(":")[2])
        other = wrong.start("127.0.0.1", 0)
        right_one, nobody = f"tcp://127.0.0.1:{port}", "tcp://127.0.0.1:9"

        async def taken(*endpoints: str, me: Any = ours, limit_s: float = 60.0) -> str:
            return await asyncio.to_thread(
                first_answering, endpoints, server_key=keys.public, keys=me, limit_s=limit_s
            )

        assert await taken("tcp://[broken", nobody, other, right_one) == right_one
        assert await taken(right_one, other) == right_one
        assert await taken(nobody, other, limit_s=0.7) == ""
        # It is the right daemon, although it does not know us.
        assert await taken(other, right_one, me=generate_pair()) == right_one
        right.close()
        wrong.close()

    asyncio.run(run())


# ---- ports ----------------------------------------------------------------------------------


def test_the_device_of_an_address_is_found() -> None:
    assert ports.interface_of("127.0.0.1") == "lo"
    assert ports.interface_of("203.0.113.9") == ""  # TEST-NET-3: nobody's
    assert ports.interface_of("2001:db8::9") == ""  # for documents: nobody's
    own = [(str(one.address), one.interface) for one in host_addresses()]
    assert own
    for text, device in own:
        assert ports.interface_of(text) == device
    if Path("/proc/net/if_inet6").exists():
        assert ports.interface_of("0:0::0:1") == "lo"


def test_libraries_listen_at_the_device_of_the_address_unless_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL cannot be asked here: its documentation says that "=" asks for the whole name."""
    for name in ports.DEVICE_VARIABLES:
        monkeypatch.setenv(name, "")  # put back afterwards
        monkeypatch.delenv(name)
    ports.keep_to_device_of("203.0.113.9")
    assert not ports.DEVICE_VARIABLES.keys() & os.environ.keys()
    monkeypatch.setenv("FI_TCP_IFACE", "ib7")
    ports.keep_to_device_of("127.0.0.1")
    assert {name: os.environ[name] for name in ports.DEVICE_VARIABLES} == {
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "=lo",
        "FI_TCP_IFACE": "ib7",
    }


def test_listeners_take_free_ports_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        text = f"{first}-{first}"

        async def refused() -> None:
            router = CurveRouter(
                keys=generate_pair(),
                max_message_bytes=MESSAGE_BYTES,
                is_allowed=bool,
                on_frame=lambda *_: None,
            )
            with pytest.raises(BftError, match="BFT-1306"):
                router.start("127.0.0.1", 0, text)
            router.close()

        asyncio.run(refused())
        monkeypatch.setenv(ports.VARIABLE, text)
        with pytest.raises(OSError, match="in use"):
            StoreServer("127.0.0.1")
    store = StoreServer("127.0.0.1")
    assert store.port == first
    store.close()


def test_every_port_of_a_range_is_tried() -> None:
    seen = set[int]()

    def listen(port: int) -> int:
        seen.add(port)
        if len(seen) < 5:
            raise OSError(98, "Address already in use")
        return port

    assert ports.listen_within("41000-41004", listen) in seen
    assert seen == set(range(41000, 41005))


def test_a_listener_draws_none_of_the_scripts_random_numbers() -> None:
    """It is opened in another thread, at a moment of its own: samples would depend on it."""
    before = random.getstate()
    StoreServer("127.0.0.1").close()
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ports", "41100-41000"),
        ("ports", "80-90"),
        ("ports", "41000"),
        ("ports", "1024-70000"),
        ("control_network", "10.0.0.1/8"),
        ("training_network", '"two words"'),
        ("training_network", '""'),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, key: str, value: str) -> None:
    (tmp_path / "policy.yaml").write_text(f"{key}: {value}\n")
    with pytest.raises(PolicyErrors, match=f"{key} is"):
        load_policy(tmp_path / "policy.yaml")


def test_a_port_outside_the_range_is_given_up(tmp_path: Path) -> None:
    remember(tmp_path / "endpoint", "tcp://10.0.0.1:41000", "tcp://[fd77::3]:41000")
    assert remembered_port(tmp_path / "endpoint", "41000-41100") == 41000
    assert remembered_port(tmp_path / "endpoint", "42000-42100") == 0


# ---- files of this release and the one before ------------------------------------------------


def test_all_endpoints_are_remembered_and_the_first_for_releases_before(tmp_path: Path) -> None:
    file = tmp_path / "endpoint"
    both = ("tcp://10.0.0.1:41000", "tcp://[fd77::3]:41000")
    remember(file, *both)
    assert file.read_text() == both[0]
    assert endpoints_in(file) == both
    file.write_text("tcp://10.0.0.9:41000")  # of a daemon of a release before
    assert endpoints_in(file) == ("tcp://10.0.0.9:41000", *both)
    remember(file, both[0])
    assert [each.name for each in tmp_path.iterdir()] == ["endpoint"]


def test_an_agents_file_has_nothing_new_where_nothing_new_is_said(tmp_path: Path) -> None:
    pair = generate_pair()
    config = AgentConfig(
        pilot_id="p1",
        daemon_endpoint="tcp://10.0.0.1:41000",
        daemon_public_key=pair.public,
        key_file=tmp_path / "agent.key",
        state_dir=tmp_path,
        node="n1",
    )
    assert not {"endpoints", "network", "ports", "tidies"} & json.loads(config.text()).keys()
    more = config.model_copy(update={"endpoints": ("tcp://10.0.0.2:41000",), "ports": "1-2"})
    assert json.loads(more.text())["endpoints"] == ["tcp://10.0.0.2:41000"]


def test_where_a_daemon_is_can_be_read_of_both_releases(tmp_path: Path) -> None:
    endpoints = ("tcp://10.0.0.1:41000", "tcp://10.0.0.2:41000")
    one = address.own_address(endpoints, "k", {})
    address.write(tmp_path, one)
    assert address.read(tmp_path) == one
    file = tmp_path / "daemon.json"
    said = json.loads(file.read_text())
    del said["further"]
    file.write_text(json.dumps(said))
    assert address.read(tmp_path) == replace(one, further=())
    file.write_text(json.dumps(said | {"further": [7]}))
    assert address.read(tmp_path) is None


def test_no_message_is_about_an_address_alone() -> None:
    with pytest.raises(UsageError) as refused:
        place_of(AROUND, bind="127.0.0.1")
    assert re.search("--bind|--announce", refused.value.next_step)
