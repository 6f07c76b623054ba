"""Which networks and ports are used between hosts."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import AfterValidator

from bftrainer.batch.addresses import check_network
from bftrainer.elastic.ports import check_ports
from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Network")
_NETWORK = "a network such as 10.0.0.0/8 or fd00::/8, the name of an interface such as ib0, or null"
Network = Annotated[str, AfterValidator(check_network)]
_AT_START = "Pilots that run were told of the one before."


class NetworkSettings(SettingsGroup):
    """Which networks and ports are used between hosts."""

    control_network: Network | None = _setting(
        None,
        "",
        "Where agents reach the daemon: of its host's addresses only those in this network, or of "
        "this interface, are offered to them; null: all (docs/howto/slurm-site.md).",
        expects=_NETWORK,
        restart=_AT_START,
    )
    training_network: Network | None = _setting(
        None,
        "",
        "Where workers reach each other: the address of each node in this network, or of this "
        "interface, is told to the others; null: the one on the node's route to the daemon.",
        expects=_NETWORK,
        restart=_AT_START,
    )
    ports: Annotated[str, AfterValidator(check_ports)] | None = _setting(
        None,
        "",
        "The daemon, agents, and the stores by which workers find each other listen on ports of "
        "this range only; null: on any. Gloo, NCCL and MPI choose from the kernel's range "
        "('bftrainer doctor --firewall').",
        expects="a range such as 41000-41100, or null",
        restart=_AT_START,
    )
