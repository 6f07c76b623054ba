"""Which modules are the kernel's and which a satellite's, and the test files of the kernel.

The satellites are those of the import contract (pyproject.toml). A test file is the kernel's if
neither it nor what it imports of ``tests`` names a satellite, wherever it does so. The equipment
with which tests start a daemon or a Slurm is no reason to leave a file out.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("bftrainer", "milp", "trainers", "slurm_plugins", "lsf_adapters")
CONTRACT = "the kernel names no satellite"
KERNEL = (
    *("milp", "bftrainer.ground", "bftrainer.model", "bftrainer.elastic", "bftrainer.batch"),
    *("bftrainer.decide", "bftrainer.journal", "bftrainer.site", "bftrainer.fleet"),
    *("bftrainer.api", "bftrainer.daemon", "bftrainer.cli", "bftrainer.__main__"),
    *("trainers.agent", "trainers.command", "trainers.profiler", "slurm_plugins"),
    *(f"bftrainer.decide.policies.{name}" for name in ("base", "distribution", "milp")),
    *(f"bftrainer.fleet.runtimes.{name}" for name in ("base", "checks", "command", "torch")),
)
# What is in them is named one by one: here satellites are added.
OPEN = ("bftrainer", "trainers", "bftrainer.decide.policies", "bftrainer.fleet.runtimes")
EQUIPMENT = (
    *("bftrainer.lab.demo.sidecar", "bftrainer.lab.demo.local_site", "slurm_plugins.testcluster"),
)
_NAMED = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+|\blsf_adapters\b")
# What plays whole systems, and what starts verbs of satellites by their names.
_ELSEWHERE = re.compile(r"tests/(e2e|simulate|fuzz)/|/test_(bench|demo|lsf|study|tr[yi]|whatif)")


@cache
def satellites() -> tuple[str, ...]:
    """Return the satellites, as the contract protects them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in settings["contracts"]:
        if contract["name"] == CONTRACT:
            return tuple(contract["protected_modules"])
    raise LookupError(CONTRACT)


def modules() -> Iterator[tuple[str, Path]]:
    """Yield each module of the product and its file."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name.removesuffix(".__init__"), path


def side_of(module: str) -> str:
    """Return "kernel" or "satellite", by the innermost package that is named; "": none is."""
    names = [name for name in (*KERNEL, *satellites(), *OPEN) if _is_in(module, name)]
    innermost = max(names, key=len, default="")
    if innermost in satellites():
        return "satellite"
    if innermost in KERNEL or innermost == module:
        return "kernel"
    return ""


def is_of_kernel(file: str) -> bool:
    """Return whether a test file, by its path from the root, is the kernel's."""
    if not file.endswith(".py") or _ELSEWHERE.search(file):
        return False
    return not _names_a_satellite(ROOT / file)


def _names_a_satellite(path: Path) -> bool:
    todo, seen = [path], {path}
    for file in todo:
        for name in _names(file):
            if side_of(name) == "satellite" and not any(_is_in(name, own) for own in EQUIPMENT):
                return True
            helper = ROOT.joinpath(*name.split(".")).with_suffix(".py")
            if name.startswith("tests.") and helper not in seen and helper.is_file():
                seen.add(helper)
                todo.append(helper)
    return False


@cache
def _names(path: Path) -> frozenset[str]:
    """Return what a file imports, and the modules that it names in a text."""
    text = path.read_text(encoding="utf-8")
    names = set(_NAMED.findall(text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
