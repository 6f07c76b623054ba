"""Runs a part of tests/elastic with other releases of Python and torch, and writes their table.

    python scripts/try_versions.py --python 3.10,3.12 --torch 2.4,2.10
    python scripts/try_versions.py --write-only

The tests run in this environment, as the daemon would; the workers they start are of an environment
made for the cell, which has torch and what it imports, and nothing of ours. That is how users have
it. A wheel that needs CUDA libraries gets the small one that is called at import, and stand-ins for
the rest (``cuda_stand_ins``): what runs is gloo on the processor. An environment is removed after
its run. ``tests/versions.json`` keeps the results, docs/reference/versions.md their table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cuda_stand_ins import libraries_in, needs, write_missing

from bftrainer.ground import versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "tests" / "versions.json", ROOT / "docs" / "reference" / "versions.md"
BEGIN, END = "<!-- begin: scripts/try_versions.py -->\n", "<!-- end -->\n"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.4", "2.6", "2.8", "2.10", "newest")
PART = ("test_template.py", "test_rescale.py", "test_failures.py", "test_lone_group.py")
OF_SHARDS = ("test_sharded.py",)
PURE = (
    *("filelock", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe"),
    *("fsspec", "setuptools<81"),
)
# Of NVIDIA's libraries the one that torch calls when it is imported, by its major release.
RUNTIMES = {
    "libcudart.so.11.0": "nvidia-cuda-runtime-cu11",
    "libcudart.so.12": "nvidia-cuda-runtime-cu12",
    "libcudart.so.13": "nvidia-cuda-runtime",
}
STAND_INS = "cuda-stand-ins"
INSTALL_S, TESTS_S = 3000, 1800
IMPORT = "import torch; print(torch.__version__)"


def python_of(release: str) -> Path | None:
    """Return an interpreter of a release; None: there is none."""
    if release == versions.dotted(sys.version_info[:2]):
        return Path(sys.executable)
    interpreters = sorted((Path.home() / ".pyenv" / "versions").glob(f"{release}.*/bin/python"))
    on_path = shutil.which(f"python{release}")
    return interpreters[-1] if interpreters else None if on_path is None else Path(on_path)


class Cell:
    """The environment of one Python and torch, while it is there."""

    def __init__(self, python: Path, torch: str, directory: Path) -> None:
        self._torch, self._directory = torch, directory
        if not directory.exists():
            subprocess.run([str(python), "-m", "venv", str(directory)], check=True)
        self.python = directory / "bin" / "python"
        (self._site,) = directory.glob("lib/python*/site-packages")

    def install(self) -> None:
        """Install torch and what it imports.

        Raises:
            RuntimeError: pip could not; with its last line.
        """
        release = "torch" if self._torch == "newest" else f"torch=={self._torch}.*"
        self._pip(release, *PURE)
        libraries = {name for path in libraries_in(self._site / "torch") for name in needs(path)}
        for name in libraries.intersection(RUNTIMES):
            self._pip(RUNTIMES[name])

    def _pip(self, *packages: str) -> None:
        argv = [str(self.python), "-m", "pip", "install", "-q", "--no-deps", *packages]
        installation = subprocess.run(
            argv, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        if installation.returncode:
            raise RuntimeError(
                (installation.stderr.strip().splitlines() or ["pip failed"])[-1][:200]
            )

    def stand_in(self) -> list[str]:
        """Write stand-ins for what is missing; return their names."""
        return write_missing(self._site, self._directory / STAND_INS)

    def environment(self) -> dict[str, str]:
        """Return that of a process which imports this torch."""
        places = [str(self._directory / STAND_INS)]
        places += sorted({str(p.parent) for p in self._site.glob("nvidia/**/*.so*")})
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(places)}

    def torch_there(self) -> str:
        """Return the version of torch as it imports.

        Raises:
            RuntimeError: it does not import.
        """
        argv = [str(self.python), "-I", "-c", IMPORT]
        probe = subprocess.run(
            argv, capture_output=True, text=True, env=self.environment(), timeout=300, check=False
        )
        if probe.returncode:
            raise RuntimeError((probe.stderr.strip().splitlines() or ["torch crashed"])[-1][:200])
        return probe.stdout.strip().splitlines()[-1]

    def wrapper(self) -> Path:
        """Return a program that is this Python with these libraries, in any environment."""
        path = self._directory / "python-with-torch"
        libraries = self.environment()["LD_LIBRARY_PATH"]
        path.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {self.python} "$@"\n')
        path.chmod(0o755)
        return path


def run_tests(python: Path, files: Iterable[str]) -> dict[str, Any]:
    """Run tests whose workers are of this Python; return what came of them."""
    report = python.parent / "report.xml"
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "not long", f"--junitxml={report}"]
    argv += ["-p", "no:cacheprovider"]
    argv += [str(ROOT / "tests" / "elastic" / name) for name in files]
    env = {**os.environ, "BFT_TEST_PYTHON": str(python)}
    began_s = time.monotonic()
    subprocess.run(argv, cwd=ROOT, env=env, timeout=TESTS_S, check=False)
    suites = ET.parse(report).getroot()  # noqa: S314 - pytest has written it a moment before
    suite = suites if suites.tag == "testsuite" else suites[0]
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = [
        str(case.get("name"))
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    n_failed = count["failures"] + count["errors"]
    passed = count["tests"] - n_failed - count["skipped"]
    seconds = round(time.monotonic() - began_s, 1)
    return {"passed": passed, "failed": failed, "skipped": count["skipped"], "seconds": seconds}


def run_cell(release: str, torch: str, work: Path, *, keeps: bool) -> dict[str, Any]:
    """Make a cell's environment, run its tests, remove it; return what the table says of it.

    An environment that an earlier call has left is used as it is.
    """
    about: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "part": list(PART)}
    python = python_of(release)
    if python is None:
        return {**about, "why_not": f"there is no Python {release} on this machine"}
    directory = work / f"py{release}-torch{torch}"
    try:
        cell = Cell(python, torch, directory)
        cell.install()
        about["stand_ins"] = cell.stand_in()
        about["torch"] = torch_version = cell.torch_there()
        if (versions.release_of(torch_version) or (0, 0)) >= versions.LEAST_TORCH_OF_SHARDS:
            about["part"] = [*PART, *OF_SHARDS]
        return {**about, **run_tests(cell.wrapper(), about["part"])}
    except (RuntimeError, OSError, subprocess.SubprocessError) as problem:
        return {**about, "why_not": str(problem)[:200]}
    finally:
        if not keeps:
            shutil.rmtree(directory, ignore_errors=True)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results as a table in Markdown."""
    rows = ["| Python | torch | ran | result |", "|---|---|---|---|"]
    for key, cell in sorted(results.items(), key=_order):
        python, _, torch = key.partition(" ")
        if "why_not" in cell:
            rows.append(f"| {python} | {torch} | not run | {cell['why_not']} |")
            continue
        how = f", {len(cell['stand_ins'])} stand-ins" if cell["stand_ins"] else ""
        files = ", ".join(f"`{name}`" for name in cell["part"])
        failed = "".join(f"; failed: `{name}`" for name in cell["failed"])
        outcome = f"{cell['passed']} passed, {cell['skipped']} skipped{failed}"
        ran = f"{files} in {cell['seconds']:.0f} s, {cell['date']}{how}"
        rows.append(f"| {python} | {cell['torch']} | {ran} | {outcome} |")
    return "\n".join(rows) + "\n"


def _order(item: tuple[str, Any]) -> tuple[tuple[int, int], tuple[int, int]]:
    python, _, torch = item[0].partition(" ")
    return versions.release_of(python) or (0, 0), versions.release_of(torch) or (99, 0)


def read_results() -> dict[str, Any]:
    """Return the results so far, by Python and torch."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return results


def write_page(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Put the table into its page."""
    text = PAGE.read_text("utf-8")
    before, _, tail = text.partition(BEGIN)
    _, _, after = tail.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table(results)}{END}{after}", "utf-8")


def main() -> int:
    """Run the cells that were asked for; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=",".join(PYTHONS), help="releases, by commas")
    parser.add_argument("--torch", default=",".join(TORCHES), help="releases, by commas")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "versions")
    parser.add_argument("--keep", action="store_true", help="leave the environments for later")
    parser.add_argument("--write-only", action="store_true", help="only write the table anew")
    arguments = parser.parse_args()
    ran: list[Any] = []
    if not arguments.write_only:
        arguments.work.mkdir(parents=True, exist_ok=True)
        print(f"tests run with Python {sys.version.split()[0]}, torch {version('torch')}")
        for release in arguments.python.split(","):
            for torch in arguments.torch.split(","):
                cell = run_cell(release, torch, arguments.work, keeps=arguments.keep)
                ran.append(cell)
                results = {**read_results(), f"{release} {torch}": cell}  # others may have written
                print(f"Python {release}, torch {torch}: {cell}", flush=True)
                RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    write_page(read_results())
    return int(any(found.get("failed") for found in ran))


if __name__ == "__main__":
    sys.exit(main())
