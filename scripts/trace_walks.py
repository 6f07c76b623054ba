"""How many modules of the product are on the three walks of ARCHITECTURE.md?

A walk is a span of time in which daemon, agents and workers run with a recording interpreter
(``_bench.traced``). A module is on the walk if a line of one of its functions is executed in the
span, so heartbeats and metrics of that time count, too; importing it does not count.

* idle node: an ordinary job leaves the node of the embedded local batch system; ends with a
  worker's first step. Its part up to the pilot's first line is shown apart.
* announced job: an ordinary job is submitted for that node; ends when it runs. The local batch
  system has no hook: the poll shows the job. A real Slurm has: "idle node, Slurm" and "announced
  job, Slurm" are these walks there.
* rescale: two nodes are planned for a trainer of one worker; ends when the generation of two is
  journalled. The daemon's side is the ``ControlPlane`` in this process.

Returns of one decision: the modules that ``decide`` enters, in the order of calls, give a sequence
of stays; a stay in a module that was entered and left before is a return, so returns = stays -
modules. Calls into ``bftrainer.model``, ``milp`` and what is no product do not count. A function
that calls the same other function again counts once: a loop over nodes is one passage. Of every
tenth decision in tests/frozen the one with the most returns is shown, and the median of all.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, Final

from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.traced import PACKAGES, ROOT
from _bench.walks import Walk, on_local_site, on_plane, on_slurm
from _frozen import core, lines
from rich.table import Table

from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy

# Two thirds of what they were before small modules were joined (ADR 37).
MOST: Final = {"idle node, Slurm": 161, "announced job, Slurm": 100, "rescale": 83}
MOST_RETURNS: Final = 40
FEW: Final = 10  # lines: such a module is a candidate for joining another
EVERY: Final = 10  # of the frozen decisions
NOT_COUNTED: Final = ("bftrainer/model/", "milp/")
PARTS: Final = ("local", "slurm", "rescale", "decision")


def stays(call: Callable[[], object]) -> list[str]:
    """Return the modules that a call enters, in the order of calls; see above."""
    found: list[str] = []
    seen: set[tuple[CodeType | None, CodeType]] = set()
    prefixes = tuple(f"{ROOT}/{package}/" for package in PACKAGES)

    def called(frame: FrameType, event: str, _arg: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(prefixes):
            return
        module = name.removeprefix(f"{ROOT}/")
        pair = (frame.f_back.f_code if frame.f_back else None, frame.f_code)
        if module.startswith(NOT_COUNTED) or pair in seen:
            return
        seen.add(pair)
        if not found or found[-1] != module:
            found.append(module)

    sys.setprofile(called)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def decisions(every: int = EVERY) -> list[list[str]]:
    """Return the stays of each ``every``-th frozen decision."""
    found = []
    for path in sorted((ROOT / "tests" / "frozen" / "decisions").glob("*.jsonl.gz")):
        for case in lines.read(path)[1][::every]:
            given = core.input_of(case["situation"])
            policy = load_policy(given.settings.policy)
            found.append(stays(lambda given=given, policy=policy: decide(given, policy)))  # type: ignore[misc]
    return found


def main() -> int:
    """Trace; return 0 when every target is met."""
    arguments = _arguments()
    walks: dict[str, Walk] = {}
    with tempfile.TemporaryDirectory(prefix="bft-walks-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # ordinary jobs must reach the cluster
        if "local" in arguments.parts:
            walks |= on_local_site(directory)
        if "slurm" in arguments.parts:
            (directory / "real").mkdir()
            walks |= on_slurm(directory / "real")
        if "rescale" in arguments.parts:
            walks["rescale"] = asyncio.run(on_plane(directory / "plane"))
    found = decisions() if "decision" in arguments.parts else []
    targets = [
        _target(f"modules, {walk}", len(walks[walk]), MOST[walk]) for walk in MOST if walk in walks
    ]
    results: dict[str, Any] = {"walks": walks}
    if found:
        worst = max(found, key=returns)
        of = f"median of {len(found)}: {median(map(returns, found)):g}"
        targets.append(_target("returns, one decision", returns(worst), MOST_RETURNS, of))
        results["decision"] = worst
    _print(walks)
    print_targets("Walks", targets)
    if arguments.json:
        write_json(arguments.json, "walks", results, targets)
    return exit_code(targets)


def returns(found: list[str]) -> int:
    """Return how many stays are in a module that was left before."""
    return len(found) - len(set(found))


def _target(name: str, measured: int, limit: int, of: str = "") -> Target:
    return Target(name=name, measured=measured, limit=limit, relation="<=", unit="", note=of)


def _print(walks: dict[str, Walk]) -> None:
    table = Table(title=f"Modules with fewer than {FEW} lines executed", title_justify="left")
    for heading in ("walk", "modules", "of them"):
        table.add_column(heading, justify="left")
    for walk, modules in walks.items():
        few = [f"{name} ({n})" for name, n in modules.items() if n < FEW]
        table.add_row(walk, str(len(modules)), ", ".join(few))
    console().print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="trace these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the modules here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
