"""Nodes of which gres.conf keeps from jobs which GPUs they have. Pure.

``Flags=no_gpu_env`` leaves ``CUDA_VISIBLE_DEVICES`` and its like unset (measured on 22.05.8). Where
cgroups do not hide the other devices either (``ConstrainDevices``), two jobs with one GPU each use
the same one. GPUs without ``File`` need no rule: a node with such is invalid (measured likewise).

Source: gres.conf(5), 22.05 to 26.05; gres_gpu.c (``node_flags``: what one record of a node sets, is
set for all of them; ``_merge_system_gres_conf``: a GPU without ``File`` is discarded).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from bftrainer.model.hostlist import ParseError, expand

NAME = "gres.conf"  # beside slurm.conf
_WORD = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)")
_NO_ENV = "no_gpu_env"  # among Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class UntoldGpus:
    """The nodes whose jobs are not told their GPUs; none, if nothing was read."""

    names: frozenset[str] = frozenset()
    is_everywhere: bool = False  # on all nodes that are not in ``told``
    told: frozenset[str] = frozenset()  # nodes whose jobs are told

    def has(self, node: str) -> bool:
        """Return whether jobs of this node are not told which GPUs they have."""
        return node not in self.told and (self.is_everywhere or node in self.names)


def untold_gpus(text: str) -> UntoldGpus:
    """Parse gres.conf; lines that cannot be read, or that it includes, say nothing."""
    untold_nodes, told_nodes, is_everywhere = set[str](), set[str](), False
    for line in text.replace("\\\n", " ").splitlines():
        record = _record(line)
        if record.get("name", "").lower() != "gpu":
            continue
        is_untold = _NO_ENV in record.get("flags", "").lower().split(",")
        if "nodename" in record and is_untold:
            untold_nodes.update(_nodes(record))
        elif "nodename" in record:
            told_nodes.update(_nodes(record))
        elif is_untold:
            is_everywhere = True
        else:
            return UntoldGpus()
    return UntoldGpus(
        names=frozenset(untold_nodes), is_everywhere=is_everywhere, told=frozenset(told_nodes)
    )


def _record(line: str) -> Mapping[str, str]:
    """Return the settings of a line by their names in small letters."""
    text, _, _comment = line.partition("#")
    return {name.lower(): value for name, value in _WORD.findall(text)}


def _nodes(record: Mapping[str, str]) -> Iterable[str]:
    with suppress(ParseError):
        return expand(record["nodename"])
    return ()
