"""The daemon's command-line options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """The command-line options at start."""

    state_dir: Path
    socket: Path | None = None  # None: in the state directory
    bind_host: str = "127.0.0.1"
    offered: tuple[str, ...] = ()  # addresses that others are told; (): the bound one
    agent_address: str = ""  # data-plane address of agents; "": each finds its own
    journal_url: str = ""  # "": SQLite in the state directory
    accepted_loss: int | None = None  # the last journal entry whose loss is accepted
    may_be_shared: bool = False  # the state directory, with other hosts
    policy_files: tuple[str, ...] = ()  # absolute paths; of several the later counts
    batch_pairs: tuple[str, ...] = ()  # KEY=VALUE, before the batch_options of these files
