"""How many modules of the product are on the three walks of ARCHITECTURE.md?

A walk is a span of time in which daemon, agents and workers run with a recording interpreter
(``tests.support.traced``). A module is on the walk if a line of one of its functions is executed in
the span, so heartbeats and metrics of that time count, too; importing it does not count.

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

Moves of the snapshot: the calls of one decision in which the snapshot, or the census made of it, is
handed on (as an argument, or as the object whose method is called) give a sequence of rooms, such
as ``bftrainer/decide``; each change of room is a move. What holds more than the snapshot (the
input, the draft) does not count, nor does reading an attribute.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' control plane

from _bench.targets import at_most, console, exit_code, print_targets, write_json
from rich.table import Table

from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.model.census import NodeCensus
from bftrainer.model.cluster import Snapshot
from tests.support.frozen import core, lines
from tests.support.traced import PACKAGES, ROOT
from tests.support.walks import Walk, on_local_site, on_plane, on_slurm

# Two thirds of what they were before small modules were joined (ADR 37).
MOST: Final = {"idle node, Slurm": 161, "announced job, Slurm": 100, "rescale": 83}
MOST_RETURNS: Final = 40
MOST_MOVES: Final = 3  # of the snapshot
FEW: Final = 10  # lines: such a module is a candidate for joining another
EVERY: Final = 10  # of the frozen decisions
WITH_SNAPSHOT: Final = (Snapshot, NodeCensus)
NOT_COUNTED: Final = ("bftrainer/model/", "milp/")
PARTS: Final = ("local", "slurm", "rescale", "decision")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionWalk:
    """What one decision enters, in the order of calls; see above."""

    modules: list[str]
    snapshot_rooms: list[str]  # of the calls in which the snapshot is handed on

    @property
    def n_returns(self) -> int:
        """How many stays are in a module that was left before."""
        return len(self.modules) - len(set(self.modules))

    @property
    def n_moves(self) -> int:
        """How often the snapshot goes from one room to another."""
        return max(0, len(self.snapshot_rooms) - 1)


def walk_of(call: Callable[[], object]) -> DecisionWalk:
    """Follow the calls of a decision; see above."""
    walk = DecisionWalk(modules=[], snapshot_rooms=[])
    seen_calls: set[tuple[CodeType | None, CodeType]] = set()
    prefixes = tuple(f"{ROOT}/{package}/" for package in PACKAGES)

    def called(frame: FrameType, event: str, _arg: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(prefixes):
            return
        module = name.removeprefix(f"{ROOT}/")
        pair = (frame.f_back.f_code if frame.f_back else None, frame.f_code)
        if pair in seen_calls:
            return
        seen_calls.add(pair)
        if any(isinstance(value, WITH_SNAPSHOT) for value in frame.f_locals.values()):
            _enter(walk.snapshot_rooms, _room_of(module))
        if not module.startswith(NOT_COUNTED):
            _enter(walk.modules, module)

    sys.setprofile(called)
    try:
        call()
    finally:
        sys.setprofile(None)
    return walk


def _enter(stays: list[str], place: str) -> None:
    if not stays or stays[-1] != place:
        stays.append(place)


def _room_of(module: str) -> str:
    """Return the room of a module, as import-linter names it, with slashes."""
    package, _, below = module.partition("/")
    if package == "bftrainer":
        return f"{package}/{below.partition('/')[0]}"
    return package


def decisions(every: int = EVERY) -> list[DecisionWalk]:
    """Return the walks of each ``every``-th frozen decision."""
    walks: list[DecisionWalk] = []
    for path in sorted((ROOT / "tests" / "frozen" / "decisions").glob("*.jsonl.gz")):
        for case in lines.read(path)[1][::every]:
            situation = core.input_of(case["situation"])
            policy = load_policy(situation.settings.policy)
            walks.append(walk_of(partial(decide, situation, policy)))
    return walks


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
    decision_walks: list[DecisionWalk] = []
    if "decision" in arguments.parts:
        decision_walks = decisions()
    targets = [
        at_most(f"modules, {walk}", len(walks[walk]), MOST[walk], "")
        for walk in MOST
        if walk in walks
    ]
    results: dict[str, Any] = {"walks": walks}
    if decision_walks:
        worst = max(decision_walks, key=attrgetter("n_returns"))
        usual = median([walk.n_returns for walk in decision_walks])
        basis = f"median of {len(decision_walks)}: {usual:g}"
        targets.append(at_most("returns, one decision", worst.n_returns, MOST_RETURNS, "", basis))
        n_moves = max([walk.n_moves for walk in decision_walks])
        targets.append(at_most("moves of the snapshot", n_moves, MOST_MOVES, ""))
        results["decision"] = worst.modules
    _print(walks)
    print_targets("Walks", targets)
    if arguments.json:
        write_json(arguments.json, "walks", results, targets)
    return exit_code(targets)


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
