"""What is installed with the product: bounds, bill of materials, audit."""

from __future__ import annotations

import configparser
import json
import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import dependencies
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from bftrainer.batch import process
from tests.support.machine import ROOT

# By package: why a release is the last that may be installed, and how to see it.
UPPER_BOUNDS = {"horovod": "0.28.1 is the newest; make horovod patches exactly its sources"}
Here = Callable[..., tuple[int, str]]
_CAPS = ("<", "<=", "==", "===", "~=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A hole of a package, as ``known_holes.json`` has it."""

    package: str
    hole: str
    source: str
    fixed: str = ""  # the first release without it; "": there is none, or ``releases`` are all
    releases: tuple[str, ...] = ()  # the only ones with it
    accepted: str = ""  # why a bound may admit it

    def is_in(self, version: str) -> bool:
        """Whether a release has it."""
        if self.releases:
            return version in self.releases
        return not self.fixed or Version(version) < Version(self.fixed)

    def is_admitted_by(self, requirement: Requirement) -> bool:
        """Whether a requirement admits a release with it: the last before the first without."""
        last = self.releases or ((f"{self.fixed}.dev0",) if self.fixed else ())
        admitted = [requirement.specifier.contains(name, prereleases=True) for name in last]
        return any(admitted) or not last


def _known() -> tuple[list[Hole], set[str]]:
    """The holes, and the packages for which none was found that a bound could admit."""
    document = json.loads((ROOT / "tests" / "known_holes.json").read_text())
    holes = [
        Hole(**{**row, "releases": tuple(row.get("releases", ()))}) for row in document["holes"]
    ]
    return holes, set(document["nothing_found"])


HOLES, NOTHING_FOUND = _known()
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


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: f"{hole.package}-{hole.hole[:14]}")
def test_no_bound_admits_a_release_with_a_known_hole(hole: Hole) -> None:
    """Seen failing before: transformers 5.0 (CVE-2026-4372), lightning 2.5 (CVE-2026-58659)."""
    ours = [one for one in required() if canonicalize_name(one.name) == hole.package]
    assert ours, f"{hole.package} is no requirement any more"
    admitting = [str(one) for one in ours if hole.is_admitted_by(one)]
    if hole.accepted:
        assert admitting, f"{hole.hole} of {hole.package} need not be accepted any more"
        return
    assert not admitting, (hole.hole, hole.source)
    pinned = dependencies.pins(ROOT / "constraints.txt").get(hole.package)
    assert pinned is None or not hole.is_in(pinned)


def test_every_requirement_was_looked_up() -> None:
    names = {canonicalize_name(one.name) for one in required()}
    assert names == {hole.package for hole in HOLES} | NOTHING_FOUND
    assert not {hole.package for hole in HOLES} & NOTHING_FOUND


def test_only_what_is_shown_to_fail_has_an_upper_bound() -> None:
    capped = {
        canonicalize_name(one.name)
        for one in required()
        if any(part.operator in _CAPS for part in one.specifier)
    }
    assert capped == set(UPPER_BOUNDS)


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
    tmp_path: Path, here: Here, version: str, form: str, *, is_affected: bool
) -> None:
    file = tmp_path / "MADE-UP-1.json"
    file.write_text(json.dumps(MADE_UP))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as held:
        held.write(file, file.name)
    place = {"file": file, "folder": tmp_path, "zip": tmp_path / "all.zip"}[form]
    pinned = tmp_path / "constraints.txt"
    pinned.write_text(f"# pins\nclick==1.0\npy-zmq-not=={version}\n")
    status, told = here("--advisories", str(place), "--pinned", str(pinned))
    assert status == (1 if is_affected else 0)
    assert ("py-zmq-not" in told) is is_affected
    assert told.endswith(
        f"2 packages, 1 advisories read, {int(is_affected)} about these packages\n"
    )


def test_a_withdrawn_advisory_is_none() -> None:
    withdrawn: dict[str, Any] = {**MADE_UP, "withdrawn": "2026-01-01T00:00:00Z"}
    assert dependencies.affects(MADE_UP, "py-zmq-not", "1.0")
    assert not dependencies.affects(withdrawn, "py-zmq-not", "1.0")


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"a.json": "[]"},
        {"a.json": "{}"},
        {"a.json": "no"},
        {"a.zip": ""},
        {"a.txt": "{}"},
    ],
)
def test_an_audit_that_read_no_advisory_fails(
    tmp_path: Path, here: Here, content: dict[str, str] | None
) -> None:
    """Seen failing before: of an empty folder it said "207 packages, 0 advisories", and passed."""
    place = tmp_path / "place"
    if content is not None:
        place.mkdir()
        for name, text in content.items():
            (place / name).write_text(text)
    status, told = here("--advisories", str(place))
    assert status == 2, told
    assert "BFTRAINER_ADVISORIES" in told


@pytest.mark.parametrize("value", [None, "", " "])
def test_an_audit_without_a_place_does_not_read_the_working_directory(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """Seen failing before: an empty variable was the working directory."""
    (tmp_path / "MADE-UP-1.json").write_text(json.dumps(MADE_UP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(dependencies.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(dependencies.VARIABLE, value)
    status, told = here()
    assert status == 2
    assert "No place of advisories is named" in told


def test_advisories_of_other_ecosystems_are_not_counted(tmp_path: Path, here: Here) -> None:
    """All of them would hide that the wrong export was taken."""
    text = json.dumps(MADE_UP).replace('"PyPI"', '"npm"')
    (tmp_path / "a.json").write_text(text)
    status, told = here("--advisories", str(tmp_path))
    assert status == 2
    assert ", 0 advisories read, 0 about these packages" in told


def test_a_damaged_zip_of_advisories_is_said(tmp_path: Path, here: Here) -> None:
    place = tmp_path / "all.zip"
    with zipfile.ZipFile(place, "w") as written:
        written.writestr("MADE-UP-1.json", json.dumps(MADE_UP))
    data = bytearray(place.read_bytes())
    data[60] ^= 0xFF  # of the stored text
    place.write_bytes(data)
    status, told = here("--advisories", str(place))
    assert status == 2
    assert "cannot be read" in told


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Audit our constraints, in this process: return the status, and what was printed."""

    def audited_here(*words: str) -> tuple[int, str]:
        ours = ("--pinned", str(ROOT / "constraints.txt"))
        monkeypatch.setattr(sys, "argv", ["dependencies.py", "audit", *ours, *words])
        status = dependencies.main()
        return status, capsys.readouterr().out

    return audited_here


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
