"""Solvers that misbehave, as functions for ``bftrainer.lab.solvers.child --work``."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Remaining = Callable[[], float | None]
ANSWER: dict[str, Any] = {
    "status": "optimal",
    "assignment": {},
    "objective": 0.0,
    "bound": None,
    "message": "",
}


def crash(request_json: str, *, remaining_s: Remaining) -> str:
    ctypes.string_at(0)
    return ""


def loop(request_json: str, *, remaining_s: Remaining) -> str:
    while True:
        pass


def loop_and_spawn(request_json: str, *, remaining_s: Remaining) -> str:
    """Leaves its pid and a child's in a file named in the request, then never ends."""
    child = os.fork()
    if child:
        path = json.loads(request_json)["problem"]["trainers"][0]["trainer_id"]
        with open(path, "w", encoding="utf-8") as stream:  # noqa: PTH123
            stream.write(f"{os.getpid()} {child}")
    while True:
        pass


def hog(request_json: str, *, remaining_s: Remaining) -> str:
    blocks = []
    while True:
        blocks.append(bytearray(1 << 24))


def chatter(request_json: str, *, remaining_s: Remaining) -> str:
    """Prints below Python, as native solvers do, then answers properly."""
    os.write(1, b"Set parameter Username\n{not an answer}\n")
    return json.dumps({**ANSWER, "status": "nothing"})


def flood(request_json: str, *, remaining_s: Remaining) -> str:
    return "x" * (1 << 25)


def garbage(request_json: str, *, remaining_s: Remaining) -> str:
    return "Segmentation fault (not really)"


def nested(request_json: str, *, remaining_s: Remaining) -> str:
    return "[" * 200_000


def silent(request_json: str, *, remaining_s: Remaining) -> str:
    return ""


def leave(request_json: str, *, remaining_s: Remaining) -> str:
    sys.stderr.write("the licence server is away\n")
    sys.stderr.flush()
    os._exit(9)


def infeasible(request_json: str, *, remaining_s: Remaining) -> str:
    return json.dumps({**ANSWER, "status": "infeasible"})


def unbounded(request_json: str, *, remaining_s: Remaining) -> str:
    return json.dumps({**ANSWER, "status": "unbounded"})


def nobody_is_optimal(request_json: str, *, remaining_s: Remaining) -> str:
    """A legal map, honestly valued, that is worse than the current one."""
    problem = json.loads(request_json)["problem"]
    lost = sum(
        t["curve"]["samples_per_s"][0] * len(t["current"]) * t["rescale_down_s"]
        for t in problem["trainers"]
    )
    return json.dumps({**ANSWER, "objective": -lost})


def all_to_the_first(request_json: str, *, remaining_s: Remaining) -> str:
    """Every node and a strange one to the first trainer, beyond its n_max."""
    problem = json.loads(request_json)["problem"]
    first = problem["trainers"][0]["trainer_id"]
    names = [*(node["name"] for node in problem["nodes"]), "strange"]
    return json.dumps({**ANSWER, "assignment": dict.fromkeys(names, first)})


def wrong_value(request_json: str, *, remaining_s: Remaining) -> str:
    """The current map, said to be worth a thousand times as much."""
    start = json.loads(request_json)["start"]
    return json.dumps({**ANSWER, "assignment": start, "objective": 1e9, "bound": 1e9})


def not_a_number(request_json: str, *, remaining_s: Remaining) -> str:
    return json.dumps({**ANSWER, "objective": float("nan")})


def low_bound(request_json: str, *, remaining_s: Remaining) -> str:
    """Nothing found, but a bound below what the current map is worth."""
    start = json.loads(request_json)["start"]
    n_nodes = len(start)
    return json.dumps(
        {
            **ANSWER,
            "status": "feasible",
            "assignment": start,
            "objective": 10.0 * n_nodes * 100.0,
            "bound": 1.0,
        }
    )
