"""Keeps the server's state in a file: a line per changed job, the last one counts.

A server that was killed and started again reads it; the jobs' processes run on meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lsf_adapters.testcluster.state import Host, Job, QueueState


class Store:
    """The file of one cluster."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> tuple[dict[str, Job], dict[str, Host], dict[str, QueueState]]:
        """Return jobs, hosts and queues as they were last written, and shorten the file."""
        jobs: dict[str, Job] = {}
        hosts: dict[str, Host] = {}
        queues: dict[str, QueueState] = {}
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return jobs, hosts, queues
        for line in text.splitlines():
            try:
                kind, name, values = json.loads(line)
            except ValueError:
                continue  # the last line of a server that was killed while it wrote
            if kind == "job":
                jobs[name] = Job.from_values(values)
            elif kind == "gone":
                jobs.pop(name, None)
            elif kind == "host":
                hosts[name] = Host(**values)
            elif kind == "queue":
                queues[name] = QueueState(**values)
        whole = self._path.with_suffix(".new")
        whole.write_text("")
        Store(whole).write(jobs.values(), hosts, queues)
        whole.replace(self._path)
        return jobs, hosts, queues

    def write(
        self,
        jobs: Iterable[Job],
        hosts: dict[str, Host],
        queues: dict[str, QueueState],
        gone: Iterable[str] = (),
    ) -> None:
        """Append what changed."""
        lines = "".join(map(_line, _records(jobs, hosts, queues, gone)))
        if lines:
            with self._path.open("a") as file:
                file.write(lines)


def _records(
    jobs: Iterable[Job], hosts: dict[str, Host], queues: dict[str, QueueState], gone: Iterable[str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for job in jobs:
        yield "job", job.key, job.to_values()
    for key in gone:
        yield "gone", key, {}
    for name, host in hosts.items():
        yield "host", name, dataclasses.asdict(host)
    for name, queue in queues.items():
        yield "queue", name, dataclasses.asdict(queue)


def _line(record: tuple[str, str, dict[str, Any]]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"
