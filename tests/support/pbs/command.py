"""The commands of the stand-in for OpenPBS: qsub, qstat, qdel, pbsnodes and pbs_rstat.

Linked under these names and run by itself (``python -IS``, standard library alone: it starts in
20 ms). The embedded batch system, whose socket is in the folder above, queues and runs the jobs;
this prints and refuses as OpenPBS 23.06 does (tests/fixtures/pbs). Like PBS's own commands it waits
without an end for a server that does not answer. Options that no adapter here uses are not known.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HOST = "pbslab"
ORDINARY, PILOTS = "workq", "bf"
UNKNOWN_JOB, HAS_FINISHED, UNKNOWN_QUEUE, NO_SERVER = 153, 35, 170, 162  # exit statuses
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,235}")
LETTERS = {"pending": "Q", "running": "R", "completing": "E", "ending": "E"}
# How a job ended: substate and exit status. Those of a job that failed are not known here.
ENDS = {"COMPLETED": (92, 0), "FAILED": (93, 1), "TIMEOUT": (93, -29), "NODE_FAIL": (93, -1)}
TERMINATED = (91, 0)
Row = dict[str, Any]


def main(name: str, argv: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    commands = {"qsub": qsub, "qdel": qdel, "qstat": qstat, "pbsnodes": pbsnodes}
    commands["pbs_rstat"] = pbs_rstat
    try:
        return commands[name](argv)
    except OSError:
        words = f"Connection refused\n{name}: cannot connect to server {HOST} (errno=15010)"
        return complain(words, NO_SERVER)


def complain(words: str, status: int) -> int:
    """Print an error and return the status."""
    sys.stderr.write(words + "\n")
    return status


def ask(op: str, **fields: Any) -> Row:
    """Send a request to the server and wait for its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(Path(sys.argv[0]).parents[1] / "local.sock"))
        connection.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
        with connection.makefile() as answers:
            answer: Row = json.loads(answers.readline())
            return answer


def show(kind: str, rows: Row) -> int:
    """Print objects as PBS's commands print JSON; without objects their kind is missing."""
    head = {"timestamp": int(time.time()), "pbs_version": "23.06.06", "pbs_server": HOST}
    shown = {**head, kind: rows} if rows else head
    sys.stdout.write(json.dumps(shown, indent="\t", separators=(",", ":\t")) + "\n")
    return 0


def clock(at_s: float) -> str:
    """Return a time as PBS prints it, in the caller's zone."""
    return time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(at_s))


def duration(length_s: float) -> str:
    """Return a length of time as PBS prints it."""
    minutes, seconds = divmod(int(length_s), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def chunks(nodes: Iterable[str], cpus: int) -> str:
    """Return nodes as PBS names those of a job."""
    return "+".join(f"({node}:ncpus={cpus})" for node in nodes)


def number_of(job_id: str) -> str:
    """Return what the embedded batch system calls a job."""
    return job_id.removesuffix(f".{HOST}")


def qsub(argv: Sequence[str]) -> int:
    """Submit a pilot to one vnode, or an ordinary job of whole nodes."""
    words = [word for word in argv[: argv.index("--")] if word != "-f"]
    program = argv[argv.index("--") + 1 :]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    options = dict(pairs)
    wanted = dict(value.split("=", 1) for key, value in pairs if key == "-l")
    queue, name = options.get("-q", ORDINARY), options.get("-N", Path(program[0]).name)
    if not NAME.fullmatch(name):
        return complain("qsub: illegal -N value", 2)
    if queue not in (ORDINARY, PILOTS):
        return complain("qsub: Unknown queue", UNKNOWN_QUEUE)
    count, *parts = wanted["select"].split(":")
    start = f'export PBS_JOBID="$BFT_LOCAL_JOB_ID.{HOST}"; exec "$@"'
    common = {
        "limit_s": int(wanted["walltime"]),
        "argv": ["/bin/sh", "-c", start, name, *program],
    }
    if queue == ORDINARY:
        answer = ask("submit", user="alice", n_nodes=int(count), **common)
    else:
        node = dict(part.split("=") for part in parts)["vnode"]
        log = Path(sys.argv[0]).parents[1] / "pilot.log"
        where = {"node": node, "log_path": str(log), "environment": {}}
        answer = ask("launch", user="root", pilot_id=name, **where, **common)
    if not answer["ok"]:
        return complain(f"qsub: {answer['cause']}", 1)
    sys.stdout.write(f"{answer['job_id']}.{HOST}\n")
    return 0


def qdel(argv: Sequence[str]) -> int:
    """Send SIGTERM to jobs; ``-W force`` only matters where a node is away."""
    ids = argv[2:] if argv[:1] == ["-W"] else argv
    if not ids:
        return complain("usage:\n\tqdel [-W force|suppress_email=X] [-x] job_identifier...", 2)
    known, status = {job["job_id"] for job in ask("snapshot")["jobs"]}, 0
    ended = ask("pilots", job_ids=[number_of(job_id) for job_id in ids])["pilots"]
    for job_id in ids:
        number = number_of(job_id)
        if number in known:
            ask("cancel", job_ids=[number], force=False)
        elif ended[number]["reason"]:
            status = complain(f"qdel: Job has finished {number}.{HOST}", HAS_FINISHED)
        else:
            status = complain(f"qdel: Unknown Job Id {number}.{HOST}", UNKNOWN_JOB)
    return status


def pbsnodes(_: Sequence[str]) -> int:
    """Show all vnodes."""
    seen = ask("snapshot")
    users = {node: job["job_id"] for job in seen["jobs"] for node in job["nodes"]}
    return show("nodes", {node["name"]: vnode(node, users) for node in seen["nodes"]})


def vnode(node: Row, users: Mapping[str, str]) -> Row:
    """Return the attributes of one."""
    name, cpus = node["name"], node["cpus"]
    state = "down" if node["state"] == "down" else "job-exclusive" if name in users else "free"
    gpus = {"ngpus": node["gpus"]} if node["gpus"] else {}
    return {
        "Mom": name,
        "pbs_version": "23.06.06",
        "ntype": "PBS",
        "state": state,
        **({"jobs": [f"{users[name]}.{HOST}"]} if name in users else {}),
        "resources_available": {"arch": "linux", "host": name, "ncpus": cpus, "vnode": name} | gpus,
        "resources_assigned": {"ncpus": cpus} if name in users else {},
        "resv_enable": "True",
        "sharing": "default_shared",
        "license": "l",
    }


def qstat(argv: Sequence[str]) -> int:
    """Show all jobs as JSON, or, with -x, those with these ids as text."""
    seen = ask("snapshot")
    cpus = seen["nodes"][0]["cpus"]
    if "-x" not in argv:
        return show("Jobs", {f"{job['job_id']}.{HOST}": listed(job, cpus) for job in seen["jobs"]})
    status, ids = 0, [number_of(word) for word in argv if not word.startswith("-")]
    for number, pilot in ask("pilots", job_ids=ids)["pilots"].items():
        if pilot["phase"] or pilot["reason"]:
            lines = (f"    {key} = {value}\n" for key, value in observed(pilot, cpus).items())
            sys.stdout.write(f"Job Id: {number}.{HOST}\n{''.join(lines)}\n")
        else:
            status = complain(f"qstat: Unknown Job Id {number}.{HOST}", UNKNOWN_JOB)
    return status


def listed(job: Row, cpus: int) -> Row:
    """Return the attributes of a job in the queue."""
    n_nodes, began_s = job["n_nodes"], job["start_s"]
    on, planned = job["nodes"], job["planned_nodes"]
    names = [f"vnode={name}" for name in job["required_nodes"]]
    plan = {"exec_vnode": chunks(planned, cpus), "start_time": clock(began_s or 0.0)}
    return {
        "Job_Name": job["pilot_id"] or "sh",
        "Job_Owner": f"{job['user']}@{HOST}",
        "job_state": LETTERS[job["state"]],
        "queue": PILOTS if job["pilot_id"] else ORDINARY,
        "server": HOST,
        "ctime": clock(job["submit_s"]),
        "Priority": 0,
        **({"exec_vnode": chunks(on, cpus), "stime": clock(began_s)} if on else {}),
        "Resource_List": {
            "ncpus": n_nodes * cpus,
            "nodect": n_nodes,
            "place": "scatter:excl",
            "select": ":".join((str(n_nodes), *names, f"ncpus={cpus}")),
            "walltime": duration(job["time_limit_s"]),
        },
        **({} if on else {"comment": "Not Running: Not enough free nodes available"}),
        **({"estimated": plan} if planned and began_s and not on else {}),
    }


def observed(pilot: Row, cpus: int) -> Row:
    """Return the attributes of a pilot, ended or not."""
    state = LETTERS.get(pilot["phase"], "F")
    substate, status = ENDS.get(pilot["reason"], TERMINATED)
    node = pilot["node"]
    return {
        "job_state": state,
        "queue": PILOTS,
        "server": HOST,
        **({"exec_vnode": chunks([node], cpus), "stime": clock(pilot["start_s"])} if node else {}),
        **({"substate": substate, "Exit_status": status} if state == "F" and node else {}),
        **({"comment": pilot["reason"]} if pilot["reason"] else {}),
    }


def pbs_rstat(_: Sequence[str]) -> int:
    """Show all reservations: there are none."""
    ask("info")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, sys.argv[1:]))
