"""What is installed with the product: bounds, bill of materials, audit."""

from __future__ import annotations

import configparser
import json
import os
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import dependencies
import pytest
from packaging.requirements import Requirement

from bftrainer.batch import process
from tests.support.machine import ROOT

# The last release with a hole that is known; none of them may be installed.
HOLES = (
    ("click", "8.3.2", "CVE-2026-7246, disputed"),
    ("h11", "0.15.0", "CVE-2025-43859"),
    ("lightning", "2.6.2", "PyPI 2026-04-30"),
    ("lightning", "2.6.3", "PyPI 2026-04-30"),
    ("lightning", "2.3.2", "CVE-2024-5452"),
    ("psutil", "5.6.5", "CVE-2019-18874"),
    ("pydantic", "2.3.0", "CVE-2024-3772"),
    ("pytest", "9.0.2", "CVE-2025-71176"),
    ("pyyaml", "5.3.1", "CVE-2020-14343"),
    ("scikit-learn", "1.4.2", "CVE-2024-5206"),
    ("starlette", "0.39.2", "CVE-2024-47874"),
    ("starlette", "0.49.0", "CVE-2025-62727"),
    ("starlette", "1.0.0", "CVE-2026-48710, a Host header that imitates a path"),
    ("starlette", "1.3.0", "PYSEC-2026-249"),
    ("torch", "2.5.1", "CVE-2025-32434"),
    ("torch", "2.9.1", "CVE-2026-24747"),
    ("transformers", "4.57.3", "CVE-2026-1839"),
)
MADE_UP = {
    "id": "MADE-UP-1",
    "aliases": ["CVE-0000-1"],
    "summary": "A hole that nobody has.",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "Py_ZMQ.not"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}]},
                {
                    "type": "ECOSYSTEM",
                    "events": [{"fixed": "2.1"}, {"introduced": "0"}, {"introduced": "3.0rc1"},
                               {"last_affected": "3.2"}],
                },
            ],
            "versions": ["7.0", "not a version"],
        },
        {"package": {"ecosystem": "npm", "name": "click"}, "versions": ["1.0"]},
    ],
}  # fmt: skip


def required() -> list[Requirement]:
    """Every requirement in setup.cfg."""
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg")
    texts = [read["options"]["install_requires"], *read["options.extras_require"].values()]
    lines = [line for text in texts for line in text.split("\n")]
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(("name", "version", "hole"), HOLES)
def test_no_bound_admits_a_release_with_a_known_hole(name: str, version: str, hole: str) -> None:
    ours = [one for one in required() if one.name == name]
    assert ours, f"{name} is no requirement any more"
    assert not [str(one) for one in ours if one.specifier.contains(version)], hole
    assert dependencies.pins(ROOT / "constraints.txt").get(name) != version


def test_what_is_imported_is_required() -> None:
    """h11 came with uvicorn only; no bound of ours held for it."""
    assert {"h11", "starlette", "uvicorn"} <= {one.name for one in required()}


def test_constraints_are_what_setup_admits() -> None:
    pinned = dependencies.pins(ROOT / "constraints.txt")
    held = [one for one in required() if one.name in pinned]
    assert len(held) > 20
    assert not [str(one) for one in held if not one.specifier.contains(pinned[one.name])]


@pytest.mark.parametrize(
    ("version", "is_affected"),
    [
        ("1.9", True), ("2.1rc1", True), ("2.1", False), ("2.9", False), ("3.0rc1", True),
        ("3.2", True), ("3.2.1", False), ("7.0", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["file", "folder", "zip"])
def test_the_audit_finds_a_made_up_advisory(
    tmp_path: Path, version: str, form: str, *, is_affected: bool
) -> None:
    file = tmp_path / "MADE-UP-1.json"
    file.write_text(json.dumps(MADE_UP))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as held:
        held.write(file, file.name)
    place = {"file": file, "folder": tmp_path, "zip": tmp_path / "all.zip"}[form]
    pinned = tmp_path / "constraints.txt"
    pinned.write_text(f"# pins\nclick==1.0\npy-zmq-not=={version}\n")
    done = audited("--advisories", str(place), "--pinned", str(pinned))
    assert done.returncode == (1 if is_affected else 0), done.stderr
    assert ("py-zmq-not" in done.stdout) is is_affected
    assert done.stdout.endswith(f"2 packages, {int(is_affected)} advisories\n")


def test_a_withdrawn_advisory_is_none() -> None:
    withdrawn: dict[str, Any] = {**MADE_UP, "withdrawn": "2026-01-01T00:00:00Z"}
    assert dependencies.affects(MADE_UP, "py-zmq-not", "1.0")
    assert not dependencies.affects(withdrawn, "py-zmq-not", "1.0")


def test_without_a_copy_of_advisories_the_audit_says_so(tmp_path: Path) -> None:
    done = audited("--advisories", str(tmp_path / "none.zip"))
    assert (done.returncode, done.stderr) == (2, "")
    assert "BFTRAINER_ADVISORIES" in done.stdout


def audited(*words: str) -> process.Completed:
    return process.run(
        [sys.executable, str(ROOT / "scripts/dependencies.py"), "audit", *words], timeout_s=60
    )


def test_the_bill_of_materials_has_what_is_installed_and_nothing_twice() -> None:
    """By CycloneDX 1.6: references are unique, and dependencies name references only."""
    bill = dependencies.sbom()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = [bill["metadata"]["component"], *bill["components"]]
    names = [part["name"] for part in parts]
    assert len(names) == len(set(names))
    assert all(part["version"] == metadata.version(part["name"]) for part in parts)
    refs = {part["bom-ref"] for part in parts}
    assert refs == {one["ref"] for one in bill["dependencies"]}
    assert {ref for one in bill["dependencies"] for ref in one["dependsOn"]} <= refs
    assert {"pyzmq", "starlette", "h11"} <= set(names)
    assert "pytest" not in names  # not shipped
    assert dependencies.sbom() == bill


@pytest.mark.long
def test_no_advisory_is_about_what_we_pin() -> None:
    place = os.environ.get(dependencies.VARIABLE, "")
    if not place:
        pytest.skip(f"{dependencies.VARIABLE} names no copy of OSV's advisories")
    done = audited("--pinned", str(ROOT / "constraints.txt"))
    assert done.returncode == 0, done.stdout
