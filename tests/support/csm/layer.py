"""The commands of a machine with CSM, on top of a stand-in of LSF; each is a copy of this file.

One more host, ``batch1``, is the launch node; all others are compute nodes. bsub takes ``-nnodes``
and ``-csm y`` with a sum of requirements; bjobs names the launch node first, as on Summit. What is
not about CSM goes to the stand-in's own command. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any, NoReturn

HERE = os.path.dirname(os.path.abspath(sys.argv[0]))  # noqa: PTH100, PTH120
LAYER = os.path.dirname(HERE)  # noqa: PTH120
ROOT = os.path.dirname(LAYER)  # noqa: PTH120
NAME = os.path.basename(sys.argv[0])  # noqa: PTH119
LAUNCH, LAUNCH_SLOTS = "batch1", 64
_SUM = re.compile(
    r"1\*\{select\[LN\]span\[hosts=1\]\} \+ (\d+)\*\{select\[CN"
    r"(?:&&\((hname==[\w.-]+(?:\|\|hname==[\w.-]+)*)\))?\]span\[ptile=(\d+)\]\}"
)


def real(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the stand-in's command; its words of waiting appear at once."""
    path = f"{ROOT}/bin/{words[0]}"
    return subprocess.run([path, *words[1:]], input=stdin, stdout=subprocess.PIPE, check=False)


def give(out: str, status: int = 0) -> NoReturn:
    """Print an answer and exit."""
    sys.stdout.write(out)
    sys.stdout.flush()
    raise SystemExit(status)


def refuse(text: str) -> NoReturn:
    """Refuse as bsub does."""
    sys.stderr.write(f"{text}. Job not submitted.\n")
    raise SystemExit(255)


def passed_on() -> NoReturn:
    """Become the stand-in's command."""
    path = f"{ROOT}/bin/{NAME}"
    os.execv(path, [path, *sys.argv[1:]])  # noqa: S606


def checked(*words: str) -> str:
    """Return the answer of the stand-in's command, or fail as it does."""
    done = real(*words)
    if done.returncode:
        give(done.stdout.decode(), done.returncode)
    return done.stdout.decode()


def compute_nodes() -> dict[str, int]:
    """Return the compute nodes and their slots."""
    said = json.loads(checked("bhosts", "-o", "host_name max", "-json"))
    return {one["HOST_NAME"]: int(one["MAX"]) for one in said["RECORDS"] if one["MAX"] != "0"}


# -- bsub ---------------------------------------------------------------------------------


def bsub(words: list[str]) -> NoReturn:
    """Submit a job of a launch node and compute nodes."""
    given, rest = {}, []
    while words:
        word = words.pop(0)
        if word in {"-csm", "-nnodes", "-R", "-alloc_flags"}:
            given[word] = words.pop(0)
        else:
            rest.append(word)
    if "-nnodes" in given:
        need, place = easy(given)
    elif given.get("-csm") == "y":
        need, place = expert(given, rest)
    else:
        passed_on()
    script = sys.stdin.buffer.read()
    head, _, body = script.partition(b"\n")
    # What the job sees of where it runs: the launch node is the first of its hosts.
    there = f'HOSTNAME={LAUNCH}; LSB_HOSTS="{LAUNCH} $LSB_HOSTS"; export HOSTNAME LSB_HOSTS'
    done = real("bsub", *place, *rest, stdin=b"\n".join((head, there.encode(), body)))
    if done.returncode == 0:
        job_id = done.stdout.partition(b"<")[2].partition(b">")[0].decode()
        with open(f"{LAYER}/requests/{job_id}", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(need)
    give(done.stdout.decode(), done.returncode)


def easy(given: dict[str, str]) -> tuple[str, list[str]]:
    """Return requirement and options of -nnodes."""
    if "-csm" in given or "-R" in given:
        refuse("-csm y and -R cannot be used with -nnodes")
    slots = max(compute_nodes().values())
    total = int(given["-nnodes"]) * slots
    need = f"1*{{select[LN]span[hosts=1]}} + {total}*{{select[CN]span[ptile={slots}]}}"
    return need, ["-n", str(total), "-R", f"span[ptile={slots}]"]


def expert(given: dict[str, str], rest: list[str]) -> tuple[str, list[str]]:
    """Return requirement and options of -csm y -R."""
    found = _SUM.fullmatch(given.get("-R", ""))
    if found is None or {"-n", "-m"} & set(rest):
        refuse("Bad resource requirement syntax")
    names = [one.partition("==")[2] for one in (found[2] or "").split("||") if one]
    place = ["-n", found[1], "-R", f"span[ptile={found[3]}]"]
    return found[0], [*place, *(["-m", " ".join(names)] if names else [])]


# -- what is there ------------------------------------------------------------------------


def bjobs(words: list[str]) -> NoReturn:
    """List jobs; each runs on the launch node, too."""
    if "-json" not in words:
        passed_on()
    done = real("bjobs", *words)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        give(done.stdout.decode(), done.returncode)
    for one in said["RECORDS"]:
        if one.get("EXEC_HOST"):
            one["EXEC_HOST"] = f"{LAUNCH}:{one['EXEC_HOST']}"
        try:
            with open(f"{LAYER}/requests/{one.get('JOBID', '')}") as file:  # noqa: PTH123
                need = file.read()
        except OSError:
            continue
        changed = {"COMBINED_RESREQ": need, "ASK_HOSTS": ""}
        if one.get("NREQ_SLOT"):
            changed["NREQ_SLOT"] = str(int(one["NREQ_SLOT"]) + 1)
        one.update({key: value for key, value in changed.items() if key in one})
    give(json.dumps(said, indent=2) + "\n", done.returncode)


def bhosts(words: list[str]) -> NoReturn:
    """List hosts, the launch node among them."""
    if "-json" not in words:
        passed_on()
    said = json.loads(checked("bhosts", *words))
    own = {"HOST_NAME": LAUNCH, "STATUS": "ok", "MAX": str(LAUNCH_SLOTS)}
    said["RECORDS"].insert(0, {key: own.get(key, "0") for key in said["RECORDS"][0]})
    said["HOSTS"] += 1
    give(json.dumps(said, indent=2) + "\n")


def lshosts(words: list[str]) -> NoReturn:
    """List what hosts have: resources tell launch from compute nodes."""
    nodes = compute_nodes()
    lines = checked("lshosts", *words).splitlines()
    made = []
    for line in lines:
        name = line.split()[0]
        made.append(f"{line.rpartition('(')[0]}(CN)" if name in nodes else line)
        if name in nodes and LAUNCH not in " ".join(made):
            made.append(f"{LAUNCH:<{len(name)}}{line[len(name) :].rpartition('(')[0]}(LN)")
    give("\n".join(made) + "\n")


def lsload(words: list[str]) -> NoReturn:
    """List loads, the launch node's among them."""
    lines = checked("lsload", *words).splitlines()
    own = next(line for line in lines if line.split()[1] == "ok")
    lines.append(own.replace(own.split()[0], LAUNCH, 1))
    give("\n".join(lines) + "\n")


def bslots(words: list[str]) -> NoReturn:
    """List backfill windows; without select[CN] the launch node's slots count, too."""
    asked = words[words.index("-R") + 1] if "-R" in words else ""
    if asked not in {"", "select[CN]"}:
        refuse("Bad resource requirement syntax")
    text = checked("bslots", "-l")
    if "No backfill window" in text:
        give(text)
    more = 0 if asked else LAUNCH_SLOTS
    blocks = [
        (int(slots) + more, length, hosts + (f" {more}*{LAUNCH}" if more else ""))
        for slots, length, hosts in re.findall(
            r"(?:SLOTS: *)?(\d+)\s+(?:RUNTIME: *)?(\S[^\n]*)\n *HOSTS: *([^\n]*)", text
        )
    ]
    if "-l" in words:
        lines = [f"SLOTS:    {n}\nRUNTIME:  {s}\nHOSTS:    {hosts}\n" for n, s, hosts in blocks]
        give("\n".join(lines))
    give("".join(["SLOTS          RUNTIME\n", *(f"{n:<14} {s}\n" for n, s, _ in blocks)]))


# -- jobstat ------------------------------------------------------------------------------


def jobstat(_: list[str]) -> NoReturn:
    """Print OLCF's list of jobs."""
    fields = (
        "jobid user stat project job_name exec_host nreq_slot runtimelimit run_time pend_reason"
    )
    done = real("bjobs", "-u", "all", "-o", fields, "-json")
    jobs = json.loads(done.stdout or b'{"RECORDS": []}')["RECORDS"]
    nodes = compute_nodes()
    slots = max(nodes.values())
    lists: dict[str, list[str]] = {"Running": [], "Eligible": [], "Blocked": []}
    used: set[str] = set()
    for one in jobs:
        kind, row = row_of(one, slots)
        lists[kind].append(row)
        used.update(name for name in one["EXEC_HOST"].split(":") if name)
    share = f" ({len(used)} of {len(nodes)} nodes, {100 * len(used) / len(nodes):.2f}%)"
    columns = {
        "Running": "Nodes Remain     StartTime       JobName",
        "Eligible": "Nodes Walltime   QueueTime       Priority JobName",
        "Blocked": "Nodes Walltime   BlockReason",
    }
    out = []
    for kind, rows in lists.items():
        extra = share if kind == "Running" else ""
        out.append(f" {kind} Jobs: {len(rows)}{extra} ".center(100, "-"))
        out += [f"JobId    Username   Project          {columns[kind]}", *rows]
    give("\n".join(out) + "\n")


def row_of(one: dict[str, Any], slots: int) -> tuple[str, str]:
    """Return the list a job is in, and its line."""
    limit_s = 60.0 * float(one["RUNTIMELIMIT"] or "0")
    n_nodes = -(-int(one["NREQ_SLOT"] or "1") // slots)
    first = f"{one['JOBID']:<8} {one['USER']:<10} {one['PROJECT']:<16} {n_nodes:<5} "
    if one["STAT"] not in {"PEND", "PSUSP"}:
        ran_s = float((one["RUN_TIME"] or "0").split()[0])
        rest = f"{clock(limit_s - ran_s):<10} 04/09 10:06:23  {one['JOB_NAME'] or 'Not_Specified'}"
        return "Running", first + rest
    why = one["PEND_REASON"]
    if "dependency" in why or one["STAT"] == "PSUSP":
        return "Blocked", f"{first}{clock(limit_s):<10} {why}"
    return "Eligible", f"{first}{clock(limit_s):<10} 04/09 11:06:23  501.00   {one['JOB_NAME']}"


def clock(seconds: float) -> str:
    """Return "57:06" or "2:00:00"."""
    whole = max(0, int(seconds))
    hours, rest = whole // 3600, f"{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{hours}:{rest}" if hours else rest


_VERBS = {
    "bsub": bsub,
    "bjobs": bjobs,
    "bhosts": bhosts,
    "lshosts": lshosts,
    "lsload": lsload,
    "bslots": bslots,
    "jobstat": jobstat,
}

if __name__ == "__main__":
    if NAME in _VERBS:
        _VERBS[NAME](sys.argv[1:])
    passed_on()
