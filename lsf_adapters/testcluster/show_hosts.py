"""bhosts, bslots, lsload and lshosts: the hosts and their free slots."""

from __future__ import annotations

from collections.abc import Iterable
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
    found = {name: Load() for name in batch.hosts}
    for job in batch.live.values():
        for name in job.reserved:
            found[name].rsv += 1
            found[name].n_jobs += 1
        if not job.holds_slots:
            continue
        for name in job.hosts:
            one = found[name]
            one.n_jobs += 1
            one.run += job.state in ("RUN", "UNKWN")
            one.ssusp += job.state == "SSUSP"
            one.ususp += job.state == "USUSP"
        for name in set(job.hosts):
            found[name].is_exclusive |= job.is_exclusive
            found[name].gpus += job.gpus
    return found


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
    is_ibm = batch.config.is_ibm
    flags = {*"wlhVaexX", *({"json", "noheader", "gpu"} if is_ibm else ())}
    valued = {"R", "s", *({"o"} if is_ibm else ())}
    found = arguments.read(request.argv, flags=flags, valued=valued, usage=_USAGE)
    hosts, wrong = _named(batch, found.words)
    if wrong:
        text = f"{wrong}: Bad host name, host group name or cluster name\n"
        return Answer(status=255, err=text)
    use = loads(batch)
    if "o" in found.values:
        form = output.read_format(found.values["o"], _BHOSTS_FIELDS, is_ibm=True)
        rows = [_bhosts_row(batch, host, use[host.name]) for host in hosts]
        rows = [{column.name: row[column.name] for column in form.columns} for row in rows]
        return Answer(out=_formatted("bhosts", "HOSTS", rows, form, found))
    if "json" in found.flags:
        return Answer(status=255, err=_USAGE)
    if "l" in found.flags:
        return Answer(out="".join(_long(batch, host, use[host.name]) for host in hosts))
    is_wide = "w" in found.flags
    width = 15 if is_wide else 12
    counts = "MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV"
    lines = [
        f"{'HOST_NAME':<18} {'STATUS':<{width}} {'JL/U':>4}"
        + "".join(f"{word:>7}" for word in counts)
        + " "
    ]
    for host in hosts:
        load = use[host.name]
        state = status(batch, host, load)
        shown = state if is_wide else state.partition("_")[0]
        numbers = (host.slots, load.n_jobs, load.run, load.ssusp, load.ususp, load.rsv)
        lines.append(
            f"{host.name:<18} {shown:<{width}} {'-':>4}" + "".join(f"{n:>7}" for n in numbers)
        )
    return Answer(out="\n".join(lines) + "\n")


def _named(batch: Batch, words: Iterable[str]) -> tuple[list[Host], str]:
    names = [word for word in words if word not in ("all", "lab")]
    wrong = next((name for name in names if name not in batch.hosts), "")
    return [batch.hosts[name] for name in names or batch.hosts if name in batch.hosts], wrong


def _formatted(
    command: str,
    count_name: str,
    rows: list[dict[str, str]],
    form: output.Format,
    found: arguments.Arguments,
) -> str:
    if "json" in found.flags:
        records = [{name.upper(): value for name, value in row.items()} for row in rows]
        return output.as_json(command, count_name, records, is_ibm=True)
    has_header = "noheader" not in found.flags
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
    counts = (host.slots, load.n_jobs, load.run, load.ssusp, load.ususp, load.rsv)
    memory = f"{batch.config.memory_mb}M"
    comment = f"ADMIN ACTION COMMENT:  {host.comment}\n\n" if host.comment else ""
    state = status(batch, host, load)
    return (
        f"HOST  {host.name}\n"
        "STATUS           CPUF  JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV DISPATCH_WINDOW\n"
        f"{state:<14} {batch.config.parameters.cpu_factor:>6.2f}     -"
        + "".join(f"{n:>7}" for n in counts)
        + "      -\n\n CURRENT LOAD USED FOR SCHEDULING:\n"
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
    found = arguments.read(request.argv, flags={*"lhV"}, valued={*"nRW"})
    now_s = batch.now_s()
    use = loads(batch)
    free: dict[str, tuple[int, float | None]] = {}
    for host in batch.hosts.values():
        load = use[host.name]
        n = host.slots - load.run - load.ssusp - load.ususp
        if batch.host_status(host) != "ok" or host.is_closed or load.is_exclusive or n < 1:
            continue
        ends = [
            job.estimate_s
            for job in batch.live.values()
            if host.name in job.reserved and job.estimate_s is not None
        ]
        is_kept = any(host.name in job.reserved for job in batch.live.values())
        if is_kept and not ends:
            continue  # nobody knows until when
        free[host.name] = (n, min(ends) - now_s if ends else None)
    windows = _windows(free, found)
    if not windows:
        return Answer(out="No backfill window exists at this time\n")
    is_long = "l" in found.flags
    n_slots = {name: n for name, (n, _) in free.items()}
    lines = [] if is_long else ["SLOTS          RUNTIME"]
    for n, length_s, names in windows:
        length = "UNLIMITED" if length_s is None else moments.words(length_s)
        if is_long:
            where = " ".join(f"{n_slots[name]}*{name}" for name in names)
            lines += [f"SLOTS: {n}", f"RUNTIME: {length}", f"HOSTS: {where}", ""]
        else:
            lines.append(f"{n:<14} {length}")
    return Answer(out="\n".join(lines) + "\n")


def _windows(
    free: dict[str, tuple[int, float | None]], found: arguments.Arguments
) -> list[tuple[int, float | None, list[str]]]:
    """Every length of time for which some hosts are free, with all hosts free that long."""
    lengths = sorted({length for _, length in free.values() if length is not None})
    n_slots = {name: n for name, (n, _) in free.items()}
    windows: list[tuple[int, float | None, list[str]]] = []
    least = int(found.values.get("n", "1"))
    for length in [*lengths, None]:
        names = [
            name
            for name, (_, own) in free.items()
            if own is None or (length is not None and own >= length)
        ]
        n = sum(n_slots[name] for name in names)
        if n >= least:
            windows.append((n, length, names))
    return windows


def lsload(batch: Batch, request: Request) -> Answer:
    """Answer lsload: the state of each lim."""
    found = arguments.read(request.argv, flags={*"lwhVNE", "gpu"}, valued={*"RIn"})
    hosts, wrong = _named(batch, found.words)
    if wrong:
        return Answer(status=255, err=f"{wrong}: unknown host name.\n")
    wide, io = ("l" in found.flags), ("    io" if "l" in found.flags else "")
    lines = [
        f"{'HOST_NAME':<15} {'status':>14}  r15s   r1m  r15m   ut    pg{io}  ls    it   tmp   "
        "swp   mem"
        if wide
        else f"{'HOST_NAME':<15} status  r15s   r1m  r15m   ut    pg  ls    it   tmp   swp   mem"
    ]
    memory = f"{batch.config.memory_mb}M"
    now_s = batch.now_s()
    for host in hosts:
        width = 14 if wide else 6
        if batch.host_status(host) == "unavail":
            lines.append(f"{host.name:<15} {'unavail':>{width}}")
            continue
        is_locked = now_s < host.locked_until_s or any(
            job.is_exclusive and job.holds_slots and host.name in job.hosts
            for job in batch.live.values()
        )
        word = "lockU" if is_locked and not _ignores_locks(batch) else "ok"
        disk = "     0" if wide else ""
        lines.append(
            f"{host.name:<15} {word:>{width}}   0.0   0.0   0.0   0%   0.0{disk}   0     1   12G"
            f"    0M {memory:>5}"
        )
    return Answer(out="\n".join(lines) + "\n")


def _ignores_locks(batch: Batch) -> bool:
    return batch.config.is_ibm and batch.config.parameters.disable_limlock_excl


def lshosts(batch: Batch, request: Request) -> Answer:
    """Answer lshosts: what each host has."""
    is_ibm = batch.config.is_ibm
    flags = {*"lwhV", *({"json", "noheader", "gpu", "T"} if is_ibm else ())}
    found = arguments.read(request.argv, flags=flags, valued={"R", *({"o"} if is_ibm else ())})
    hosts, wrong = _named(batch, found.words)
    if wrong:
        return Answer(status=255, err=f"{wrong}: unknown host name.\n")
    if "gpu" in found.flags:
        return Answer(out=_gpu_lines(hosts))
    rows = [_lshosts_row(batch, host) for host in hosts]
    if "o" in found.values:
        form = output.read_format(found.values["o"], _LSHOSTS_FIELDS, is_ibm=True)
        rows = [{column.name: row[column.name] for column in form.columns} for row in rows]
        return Answer(out=_formatted("lshosts", "HOSTS", rows, form, found))
    lines = ["HOST_NAME      type    model  cpuf ncpus maxmem maxswp server RESOURCES"]
    lines += [
        f"{row['host_name']:<11} {row['type']:>7} {row['model']:>8} {row['cpuf']:>5} "
        f"{row['ncpus']:>5} {row['maxmem']:>6} {row['maxswp']:>6} {row['server']:>6} "
        f"{row['resources']}"
        for row in rows
    ]
    return Answer(out="\n".join(lines) + "\n")


def _lshosts_row(batch: Batch, host: Host) -> dict[str, str]:
    is_down = batch.host_status(host) == "unavail"
    return {
        "host_name": host.name,
        "type": "linux" if not is_down else "UNKNOWN",
        "model": "IntelI5" if not is_down else "UNKNOWN",
        "cpuf": f"{batch.config.parameters.cpu_factor:.1f}",
        "ncpus": str(max(2, host.slots)) if not is_down else "-",
        "maxmem": f"{batch.config.memory_mb}M" if not is_down else "-",
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
    lines += [
        f"{'' if number else host.name:<15} {number:>1} {'TeslaV100':<16} {'384.10':<11} "
        f"{'7.0':<10} {'0':<7} Nvidia"
        for host in hosts
        for number in range(host.gpus)
    ]
    return "\n".join(lines) + "\n"


def brsvs(_: Batch, __: Request) -> Answer:
    """Answer brsvs (IBM): the stand-in has no advance reservations."""
    return Answer(status=255, err="No reservation found\n")
