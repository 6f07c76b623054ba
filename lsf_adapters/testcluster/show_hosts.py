"""bhosts, bslots, lsload and lshosts: the hosts and their free slots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lsf_adapters.testcluster import arguments, moments, output
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.request import Answer, Request
from lsf_adapters.testcluster.state import Host
from lsf_adapters.testcluster.texts import THRESHOLDS

_USAGE = "Usage: bhosts [options] [host_name ... | cluster_name]\n"
_BHOSTS_FIELDS = {
    "host_name": 20,
    "status": 15,
    "cpuf": 10,
    "jl_u": 8,
    "max": 8,
    "njobs": 8,
    "run": 8,
    "ssusp": 8,
    "ususp": 8,
    "rsv": 8,
    "dispatch_window": 50,
    "ngpus": 10,
    "ngpus_alloc": 15,
    "comments": 32,
    "attribute": 30,
    "available_mem": 15,
    "reserved_mem": 15,
    "total_mem": 10,
}
_LSHOSTS_FIELDS = {
    "host_name": 20,
    "type": 10,
    "model": 10,
    "cpuf": 10,
    "ncpus": 8,
    "maxmem": 10,
    "maxswp": 10,
    "server": 10,
    "resources": 20,
    "ndisks": 8,
    "maxtmp": 10,
    "ngpus": 8,
}


@dataclass(slots=True, kw_only=True)
class Load:
    """The slots of a host by use."""

    n_jobs: int = 0
    run: int = 0
    ssusp: int = 0
    ususp: int = 0
    rsv: int = 0
    gpus: int = 0
    is_exclusive: bool = False


def loads(batch: Batch) -> dict[str, Load]:
    """Return the use of every host."""
    load_of = {name: Load() for name in batch.hosts}
    for job in batch.live.values():
        for name in job.reserved:
            load_of[name].rsv += 1
            load_of[name].n_jobs += 1
        if not job.holds_slots:
            continue
        for name in job.hosts:
            load = load_of[name]
            load.n_jobs += 1
            load.run += job.state in ("RUN", "UNKWN")
            load.ssusp += job.state == "SSUSP"
            load.ususp += job.state == "USUSP"
        for name in set(job.hosts):
            load_of[name].is_exclusive |= job.is_exclusive
            load_of[name].gpus += job.gpus
    return load_of


def status(batch: Batch, host: Host, load: Load) -> str:
    """Return a host's state as bhosts -w says it."""
    base = batch.host_status(host)
    if base != "ok":
        return base
    if host.is_closed:
        return "closed_Adm"
    if load.is_exclusive:
        return "closed_Excl"
    return "closed_Full" if load.n_jobs - load.ssusp >= host.slots else "ok"


def bhosts(batch: Batch, request: Request) -> Answer:
    """Answer bhosts."""
    flags, valued = set("wlhVaexX"), {"R", "s"}
    if batch.config.is_ibm:
        flags |= {"json", "noheader", "gpu"}
        valued |= {"o"}
    options = arguments.read(request.argv, flags=flags, valued=valued, usage=_USAGE)
    hosts, wrong = _named(batch, options.words)
    if wrong:
        text = f"{wrong}: Bad host name, host group name or cluster name\n"
        return Answer(status=255, err=text)
    load_of = loads(batch)
    if "o" in options.values:
        form = output.read_format(options.values["o"], _BHOSTS_FIELDS, is_ibm=True)
        rows = [_bhosts_row(batch, host, load_of[host.name]) for host in hosts]
        return Answer(out=_formatted("bhosts", rows, form, options))
    if "json" in options.flags:
        return Answer(status=255, err=_USAGE)
    if "l" in options.flags:
        return Answer(out="".join(_long(batch, host, load_of[host.name]) for host in hosts))
    return Answer(out=_bhosts_table(batch, hosts, load_of, is_wide="w" in options.flags))


def _bhosts_table(
    batch: Batch, hosts: Iterable[Host], load_of: Mapping[str, Load], *, is_wide: bool
) -> str:
    width = 15 if is_wide else 12
    heads = ("MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV")
    lines = [f"{'HOST_NAME':<18} {'STATUS':<{width}} {'JL/U':>4}{_cells(heads)} "]
    for host in hosts:
        load = load_of[host.name]
        state = status(batch, host, load)
        if not is_wide:
            state, _, _ = state.partition("_")
        cells = _cells(_counts(host, load))
        lines.append(f"{host.name:<18} {state:<{width}} {'-':>4}{cells}")
    return "\n".join(lines) + "\n"


def _counts(host: Host, load: Load) -> tuple[int, ...]:
    return (host.slots, load.n_jobs, load.run, load.ssusp, load.ususp, load.rsv)


def _cells(values: Iterable[object]) -> str:
    return "".join(f"{value!s:>7}" for value in values)


def _named(batch: Batch, words: Iterable[str]) -> tuple[list[Host], str]:
    """Return the hosts, all without names, and the first name that is none."""
    names = [word for word in words if word not in ("all", "lab")]
    hosts, wrong = [], ""
    for name in names or batch.hosts:
        if name in batch.hosts:
            hosts.append(batch.hosts[name])
        else:
            wrong = wrong or name
    return hosts, wrong


def _formatted(
    command: str, rows: Sequence[output.Row], form: output.Format, options: arguments.Arguments
) -> str:
    if "json" in options.flags:
        return output.as_json(command, "HOSTS", output.records(rows, form), is_ibm=True)
    has_header = "noheader" not in options.flags
    return output.table(rows, form, is_ibm=True, has_header=has_header)


def _bhosts_row(batch: Batch, host: Host, load: Load) -> dict[str, str]:
    return {
        "host_name": host.name,
        "status": status(batch, host, load),
        "cpuf": f"{batch.config.parameters.cpu_factor:.2f}",
        "jl_u": "-",
        "max": str(host.slots),
        "njobs": str(load.n_jobs),
        "run": str(load.run),
        "ssusp": str(load.ssusp),
        "ususp": str(load.ususp),
        "rsv": str(load.rsv),
        "dispatch_window": "-",
        "ngpus": str(host.gpus),
        "ngpus_alloc": str(load.gpus),
        "comments": host.comment,
        "attribute": "",
        "available_mem": f"{batch.config.memory_mb}M",
        "reserved_mem": "0M",
        "total_mem": f"{batch.config.memory_mb}M",
    }


def _long(batch: Batch, host: Host, load: Load) -> str:
    memory = f"{batch.config.memory_mb}M"
    comment = ""
    if host.comment:
        comment = f"ADMIN ACTION COMMENT:  {host.comment}\n\n"
    state = status(batch, host, load)
    return (
        f"HOST  {host.name}\n"
        "STATUS           CPUF  JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV DISPATCH_WINDOW\n"
        f"{state:<14} {batch.config.parameters.cpu_factor:>6.2f}     -"
        f"{_cells(_counts(host, load))}      -\n\n CURRENT LOAD USED FOR SCHEDULING:\n"
        "              r15s   r1m  r15m    ut    pg    io   ls    it   tmp   swp   mem  slots\n"
        f" Total         0.0   0.0   0.0    0%   0.0     0    0     1   12G    0M {memory:>5}"
        f" {host.slots - load.n_jobs:>6}\n"
        " Reserved      0.0   0.0   0.0    0%   0.0     0    0     0    0M    0M    0M      -\n"
        "\n\n LOAD THRESHOLD USED FOR SCHEDULING:\n"
        f"{THRESHOLDS}\n"
        f"{comment}\n"
    )


def bslots(batch: Batch, request: Request) -> Answer:
    """Answer bslots (IBM): how many slots are free for how long."""
    options = arguments.read(request.argv, flags={*"lhV"}, valued={*"nRW"})
    n_slots, free_for_s = _free_slots(batch)
    is_long = "l" in options.flags
    lines = []
    if not is_long:
        lines.append("SLOTS          RUNTIME")
    has_window = False
    for length_s in [*sorted(set(free_for_s.values()) - {math.inf}), math.inf]:
        names = [name for name in n_slots if free_for_s[name] >= length_s]
        n = sum(map(n_slots.__getitem__, names))
        if n < int(options.values.get("n", "1")):
            continue
        has_window = True
        length = "UNLIMITED"
        if length_s < math.inf:
            length = moments.words(length_s)
        if is_long:
            hosts = " ".join(f"{n_slots[name]}*{name}" for name in names)
            lines += [f"SLOTS: {n}", f"RUNTIME: {length}", f"HOSTS: {hosts}", ""]
        else:
            lines.append(f"{n:<14} {length}")
    if not has_window:
        return Answer(out="No backfill window exists at this time\n")
    return Answer(out="\n".join(lines) + "\n")


def _free_slots(batch: Batch) -> tuple[dict[str, int], dict[str, float]]:
    """Return how many slots of each host are free, and for how long; inf: without limit."""
    now_s = batch.now_s()
    load_of = loads(batch)
    n_slots: dict[str, int] = {}
    free_for_s: dict[str, float] = {}
    for host in batch.hosts.values():
        load = load_of[host.name]
        n_free = host.slots - load.run - load.ssusp - load.ususp
        if batch.host_status(host) != "ok" or host.is_closed or load.is_exclusive or n_free < 1:
            continue
        waiting = [job for job in batch.live.values() if host.name in job.reserved]
        starts_s = [job.estimate_s for job in waiting if job.estimate_s is not None]
        if waiting and not starts_s:
            continue  # nobody knows until when
        n_slots[host.name] = n_free
        free_for_s[host.name] = min(starts_s, default=math.inf) - now_s
    return n_slots, free_for_s


def lsload(batch: Batch, request: Request) -> Answer:
    """Answer lsload: the state of each host's load manager (lim); its load is made up."""
    options = arguments.read(request.argv, flags={*"lwhVNE", "gpu"}, valued={*"RIn"})
    hosts, wrong = _named(batch, options.words)
    if wrong:
        return Answer(status=255, err=f"{wrong}: unknown host name.\n")
    width, io_head, io = 6, "", ""
    if "l" in options.flags:
        width, io_head, io = 14, "    io", "     0"
    head = f"{'HOST_NAME':<15} {'status':>{width}}  r15s   r1m  r15m   ut    pg{io_head}"
    lines = [f"{head}  ls    it   tmp   swp   mem"]
    memory = f"{batch.config.memory_mb}M"
    for host in hosts:
        if batch.host_status(host) == "unavail":
            lines.append(f"{host.name:<15} {'unavail':>{width}}")
            continue
        word = "lockU" if _is_locked_by_job(batch, host) else "ok"
        lines.append(
            f"{host.name:<15} {word:>{width}}   0.0   0.0   0.0   0%   0.0{io}   0     1   12G"
            f"    0M {memory:>5}"
        )
    return Answer(out="\n".join(lines) + "\n")


def _is_locked_by_job(batch: Batch, host: Host) -> bool:
    """Return whether an exclusive job is on a host, or was until the last exchange of lim."""
    if batch.config.is_ibm and batch.config.parameters.disable_limlock_excl:
        return False
    if batch.now_s() < host.locked_until_s:
        return True
    for job in batch.live.values():
        if job.is_exclusive and job.holds_slots and host.name in job.hosts:
            return True
    return False


def lshosts(batch: Batch, request: Request) -> Answer:
    """Answer lshosts: what each host has."""
    flags, valued = set("lwhV"), {"R"}
    if batch.config.is_ibm:
        flags |= {"json", "noheader", "gpu", "T"}
        valued |= {"o"}
    options = arguments.read(request.argv, flags=flags, valued=valued)
    hosts, wrong = _named(batch, options.words)
    if wrong:
        return Answer(status=255, err=f"{wrong}: unknown host name.\n")
    if "gpu" in options.flags:
        return Answer(out=_gpu_lines(hosts))
    rows = [_lshosts_row(batch, host) for host in hosts]
    if "o" in options.values:
        form = output.read_format(options.values["o"], _LSHOSTS_FIELDS, is_ibm=True)
        return Answer(out=_formatted("lshosts", rows, form, options))
    lines = ["HOST_NAME      type    model  cpuf ncpus maxmem maxswp server RESOURCES"]
    lines += [
        f"{row['host_name']:<11} {row['type']:>7} {row['model']:>8} {row['cpuf']:>5} "
        f"{row['ncpus']:>5} {row['maxmem']:>6} {row['maxswp']:>6} {row['server']:>6} "
        f"{row['resources']}"
        for row in rows
    ]
    return Answer(out="\n".join(lines) + "\n")


def _lshosts_row(batch: Batch, host: Host) -> dict[str, str]:
    host_type, model = "linux", "IntelI5"
    n_cpus, memory = str(max(2, host.slots)), f"{batch.config.memory_mb}M"
    if batch.host_status(host) == "unavail":
        host_type = model = "UNKNOWN"
        n_cpus = memory = "-"
    return {
        "host_name": host.name,
        "type": host_type,
        "model": model,
        "cpuf": f"{batch.config.parameters.cpu_factor:.1f}",
        "ncpus": n_cpus,
        "maxmem": memory,
        "maxswp": "-",
        "server": "Yes",
        "resources": "()",
        "ndisks": "1",
        "maxtmp": "12051M",
        "ngpus": str(host.gpus),
    }


def _gpu_lines(hosts: Iterable[Host]) -> str:
    """Return one line per GPU, in the documented layout of lshosts -gpu."""
    lines = ["HOST_NAME  gpu_id gpu_model        gpu_driver  gpu_factor numa_id vendor"]
    for host in hosts:
        name = host.name
        for number in range(host.gpus):
            gpu = f"{number:>1} {'TeslaV100':<16} {'384.10':<11} {'7.0':<10} {'0':<7} Nvidia"
            lines.append(f"{name:<15} {gpu}")
            name = ""  # the lines of its further GPUs begin with blanks
    return "\n".join(lines) + "\n"


def brsvs(_: Batch, __: Request) -> Answer:
    """Answer brsvs (IBM): the stand-in has no advance reservations."""
    return Answer(status=255, err="No reservation found\n")
