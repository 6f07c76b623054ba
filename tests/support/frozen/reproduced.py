"""``bftrainer reproduce bftrainer --quick`` → frozen, and what comes out otherwise now.

``sample`` replays the trace that ships, ``paper`` the paper's own data; that one is made and
compared only where BFTRAINER_DATA has them.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bftrainer.batch import process
from bftrainer.lab.verbs.reproduce import DATA_VARIABLE
from tests.support.frozen.changes import Change, same
from tests.support.frozen.lines import Plain

TIMEOUT_S = 7200.0  # minutes on an idle machine


def traces() -> list[str]:
    """Return which can be replayed here."""
    return ["sample", *(["paper"] if os.environ.get(DATA_VARIABLE) else [])]


def record(directory: Path) -> None:
    """Freeze what comes out."""
    directory.mkdir(parents=True, exist_ok=True)
    for trace in traces():
        text = json.dumps(_made(trace), indent=1) + "\n"
        _path(directory, trace).write_bytes(gzip.compress(text.encode(), mtime=0))


def compare(directory: Path) -> Iterator[tuple[str, list[Change]]]:
    """Replay again; yield each result's id and what differs."""
    for trace in traces():
        frozen = json.loads(gzip.decompress(_path(directory, trace).read_bytes()))
        before, after = _results(frozen), _results(_made(trace))
        for result in sorted(before.keys() | after):
            case = f"{trace}-{result}"
            found = list(_different(before.get(result), after.get(result), ""))
            what = f"{len(found)} values, the first: {found[0]}" if found else ""
            yield case, [Change(cause="reproduction", case=case, what=what)] if found else []


def _path(directory: Path, trace: str) -> Path:
    return directory / f"{trace}.json.gz"


def _made(trace: str) -> Plain:
    argv = ["-m", "bftrainer", "reproduce", "bftrainer", "--quick", "--json", "-"]
    environment = dict(os.environ)
    if trace == "sample":
        environment.pop(DATA_VARIABLE, None)
    done = process.run([sys.executable, *argv], timeout_s=TIMEOUT_S, env=environment)
    if not done.is_ok:
        why = f"not done after {TIMEOUT_S:g} s" if done.timed_out else done.stderr[-1000:]
        raise SystemExit(f"reproduce on the {trace} trace: {why}")
    made: Plain = json.loads(done.stdout)
    return made


def _results(document: Plain) -> dict[str, Any]:
    """Return what was computed; published values and verdicts are data."""
    results = {
        one["id"]: {
            "lines": [[line["what"], line["ours"]] for line in one["lines"] if "ours" in line],
            "figures": one.get("figures", []),
        }
        for one in document["results"]
        if "figures" in one
    }
    return {**results, "trace": document["trace"]}


def _different(one: Any, other: Any, where: str) -> Iterator[str]:
    """Yield the places at which two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other):
            yield from _different(one.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _different(a, b, f"{where}[{index}]")
    elif isinstance(one, float) and isinstance(other, float):
        if not same(one, other):
            yield f"{where}: {one!r} -> {other!r}"
    elif one != other:
        yield f"{where}: {one!r} -> {other!r}"
