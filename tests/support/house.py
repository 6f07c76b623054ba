"""Gauges the house: size, rooms, names and words, beside their limits.

    python -m tests.support.house [--tree DIR] [--names] [--json FILE]

``--tree`` gauges another checkout. Equipment (the test clusters) and examples are counted apart
from the product. A room is a package directly below ``bftrainer``, or one of the other packages;
arrows are imports, wherever in a module.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from _bench.targets import Target, at_most, console, exit_code, print_targets  # noqa: E402

PACKAGES = ("bftrainer", "milp", "trainers", "slurm_plugins", "lsf_adapters")
APART = ("slurm_plugins/testcluster/", "lsf_adapters/testcluster/", "trainers/examples/")
FEW_LINES = 60
_QUESTION = re.compile(r"(What|Who|Whose|Which|How|Why|Whether|When|Where)\b")
_PARTICIPLE = re.compile(
    r"(.*_)?(\w+ing|\w+ed|told|known|written|shown|drawn|kept|taken|sent|again)\Z"
)
_NOUNS = {"setting", "ring", "string", "need", "speed", "feed", "seed"}  # that only look like one


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module: its path below the tree, and what its text says."""

    path: str
    lines: int
    tree: ast.Module

    @property
    def name(self) -> str:
        """Dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """The room it is in; "": the root package itself."""
        first, _, below = self.name.partition(".")
        return below.partition(".")[0] if first == "bftrainer" else first

    @property
    def is_apart(self) -> bool:
        """Whether it is equipment or an example."""
        return self.path.startswith(APART)

    def imported(self) -> Iterator[str]:
        """Yield the dotted names that it imports, wherever."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


class House:
    """The modules of one tree."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    @cached_property
    def modules(self) -> list[Module]:
        """All of the product, equipment and examples."""
        paths = []
        for path in sorted(p for top in PACKAGES for p in (self._tree / top).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(self._tree).as_posix()
            paths.append(Module(path=name, lines=text.count("\n"), tree=ast.parse(text)))
        return paths

    @cached_property
    def product(self) -> list[Module]:
        """What is not counted apart."""
        return [module for module in self.modules if not module.is_apart]

    def arrows(self) -> dict[str, set[str]]:
        """Return for each room the rooms it imports."""
        rooms_of: dict[str, set[str]] = defaultdict(set)
        for module in self.product:
            for name in module.imported():
                first, _, below = name.partition(".")
                room = below.partition(".")[0] if first == "bftrainer" else first
                ends = {room, module.room}
                if (
                    first in PACKAGES
                    and len(ends) == 2
                    and not ends & {"", "__main__", "__version__"}
                ):
                    rooms_of[module.room].add(room)
        return rooms_of

    def upward(self) -> list[str]:
        """Return the arrows that do not point down, as ``a -> b``; unknown rooms have none."""
        floor = floors()
        return sorted(
            f"{above} -> {below}"
            for above, rooms in self.arrows().items()
            for below in rooms
            if floor.get(above, len(floor)) >= floor.get(below, -1)
        )

    def entries(self) -> list[str]:
        """Return what is directly below ``bftrainer``, but for ``__init__`` and ``__main__``."""
        return sorted(
            {m.room for m in self.product if m.path.startswith("bftrainer/")} - {"", "__main__"}
        )

    def clashes(self) -> list[str]:
        """Return the public class names with several meanings."""
        count: dict[str, int] = defaultdict(int)
        for module in self.product:
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    count[node.name] += 1
        return sorted(name for name, times in count.items() if times > 1)

    def participles(self) -> list[str]:
        """Return the modules whose last word is a participle or a gerund."""
        last = [(m.name, m.name.rpartition(".")[2]) for m in self.product if "__" not in m.path]
        return [n for n, w in last if _PARTICIPLE.match(w) and w.rpartition("_")[2] not in _NOUNS]

    def questions(self) -> tuple[float, float]:
        """Return the shares of docstrings that begin with a question word: modules, definitions."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        modules = [ast.get_docstring(m.tree) for m in self.product]
        every = (n for m in self.product for n in ast.walk(m.tree) if isinstance(n, kinds))
        return _share(modules), _share([ast.get_docstring(node) for node in every])

    def words(self) -> int:
        """Return the words of the documents, without signs and the records of decisions."""
        pages = [*self._tree.glob("*.md"), *(self._tree / "docs").rglob("*.md")]
        limited_pages = [p for p in pages if "adr" not in p.parts and p.name != "CHANGELOG.md"]
        words = (
            word for path in limited_pages for word in path.read_text(encoding="utf-8").split()
        )
        return sum(any(map(str.isalnum, word)) for word in words)

    def total(self) -> int:
        """Return the lines of all Python of the tree."""
        tops = (*PACKAGES, "scripts", "tests", "docs", "packaging")
        paths = (p for top in tops for p in (self._tree / top).rglob("*.py"))
        return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)

    def targets(self) -> list[Target]:
        """Return all figures beside their limits."""
        product, names = self.product, [m for m in self.product if "__" not in m.path]
        small = sum(m.lines < FEW_LINES for m in names)
        of_modules, of_definitions = self.questions()
        share = 100.0 * len(self.participles()) / len(names)
        sizes = sorted(m.lines for m in names)
        rows = (
            ("lines of the product", sum(m.lines for m in product), 82_000),
            ("modules of the product", len(product), 640),
            ("lines of Python in all", self.total(), 210_000),
            ("entries of bftrainer", len(self.entries()), 13),
            ("upward arrows between rooms", len(self.upward()), 0),
            ("lines of the longest module", sizes[-1], 800),
            # 60 of 640 modules, as long as there were no more.
            (
                f"modules of fewer than {FEW_LINES} lines, %",
                round(100.0 * small / len(names), 1),
                9.4,
            ),
            ("class names with several meanings", len(self.clashes()), 10),
            ("modules named by participles, %", round(share, 1), 3),
            ("module docstrings that ask, %", round(of_modules, 1), 3),
            ("other docstrings that ask, %", round(of_definitions, 1), 3),
        )
        return [at_most(name, value, limit, "", f"{value:,}") for name, value, limit in rows]


def floors() -> dict[str, int]:
    """Return the floor of each room, 0 on top, from the contract in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    (layers,) = (c["layers"] for c in contracts if c["type"] == "layers" and "containers" not in c)
    return {
        room.strip().removeprefix("bftrainer."): number
        for number, layer in enumerate(layers)
        for room in layer.split("|")
    }


def _share(found: list[str | None]) -> float:
    docstrings = [docstring for docstring in found if docstring]
    return (
        100.0
        * sum(bool(_QUESTION.match(docstring)) for docstring in docstrings)
        / max(1, len(docstrings))
    )


def main() -> int:
    """Gauge; return 0 when all limits are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--names", action="store_true", help="print the names behind the figures")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    house = House(arguments.tree)
    targets = house.targets()
    print_targets("House", targets)
    console().print(f"words of documents: {house.words():,}; they have no limit")
    if arguments.names:
        for heading in ("upward", "clashes", "participles"):
            console().print(f"{heading}: {', '.join(getattr(house, heading)())}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(t) for t in targets]), encoding="utf-8")
    return exit_code(targets)


if __name__ == "__main__":
    sys.exit(main())
