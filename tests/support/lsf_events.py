"""Writes records of lsb.events as mbatchd does, for tests. Own writing of the documented order.

Source: lsb.events(5), IBM Spectrum LSF 10.1; quotes in texts are doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.snapshots import T0

QUEUE, PILOTS = "normal", "bf"


def record(kind: str, at_s: float, *fields: object, version: str = "10.1") -> str:
    """Write a record: texts quoted, numbers bare."""
    return " ".join([_word(kind), _word(version), f"{at_s:.0f}", *map(_word, fields)])


def _word(value: object) -> str:
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else str(value)


def job_new(
    job_id: int = 7,
    *,
    at_s: float = T0,
    user: str = "ada",
    queue: str = QUEUE,
    options: int = 0x2000003,
    slots: int = 1,
    slots_max: int | None = None,
    begin_s: int = 0,
    run_limit: int = -1,
    factor: float = 1.0,
    resources: str = "",
    cwd: str = "/home/ada",
    hosts: Sequence[str] = (),
    dependency: str = "",
    before: Sequence[str] = ("",),
    name: str = "name",
    command: str = "sleep 60",
    copies: Sequence[tuple[str, str, int]] = (),
    nios_port: int | None = None,
    options2: int = 0x1410,
    version: str = "10.1",
) -> str:
    """Write JOB_NEW as IBM does, with its later texts."""
    limits = [-1] * 11
    limits[9] = run_limit
    port = () if nios_port is None else (nios_port,)
    return record(
        *("JOB_NEW", at_s, job_id, 1000, options, slots, int(at_s), begin_s, 0, -65535, 0, 0),
        *(user, *limits, "hosta", factor, 18, queue, resources, "login", cwd, "", "", "", ""),
        *("/home/ada", f"{at_s:.0f}.{job_id}", len(hosts), *hosts, dependency, *before),
        *(name, command, len(copies), *(word for copy in copies for word in copy)),
        *("", "default", *port, slots if slots_max is None else slots_max),
        *("X86_64", "/bin/sh", "", "", "", options2, 0, "", "", "", -1, -1, -1, 64, ""),
        version=version,
    )


def job_start(job_id: int, hosts: Sequence[str], *, at_s: float = T0, index: int = 0) -> str:
    """Write JOB_START as IBM does, with its userGroup."""
    fields = (job_id, 4, 0, 0, 60.0, len(hosts), *hosts, "", "", 0, "group", index, "", -1)
    return record("JOB_START", at_s, *fields)


def job_status(job_id: int, status: int, *, at_s: float = T0, index: int = 0) -> str:
    """Write JOB_STATUS, with resource usage if the job has ended."""
    usage = (1, *([-1] * 19)) if status & 0x60 else (0,)
    return record("JOB_STATUS", at_s, job_id, status, 0, 0, 0.01, int(at_s), *usage, 0, index, 0)
