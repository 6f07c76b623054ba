#!/usr/bin/env python3
"""What the product is installed with: a bill of materials, and an audit against advisories.

    scripts/dependencies.py sbom [--out FILE]
    scripts/dependencies.py audit [--advisories PLACE] [--pinned FILE]

Reads the metadata of installed distributions, from bftrainer along its requirements and extras but
``dev``. Nothing is asked of the network: ``PLACE`` is a copy of OSV's export for PyPI (all.zip of
https://osv-vulnerabilities.storage.googleapis.com/PyPI/), a folder of such files, or one of them;
by default $BFTRAINER_ADVISORIES. An audit that has read no advisory fails. Formats: CycloneDX 1.6
(https://cyclonedx.org/docs/1.6/json/) and OSV (https://ossf.github.io/osv-schema/).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

PRODUCT, UNSHIPPED = "bftrainer", "dev"
VARIABLE = "BFTRAINER_ADVISORIES"
ADVICE = f"Let ${VARIABLE} name a copy of OSV's export for PyPI."


def requirements(name: str, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what an installed distribution needs here, with these extras."""
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def installed() -> dict[str, tuple[str, ...]]:
    """Return the product and all below it that is installed, each with the names it needs."""
    extras_provided = metadata.metadata(PRODUCT).get_all("Provides-Extra") or []
    todo = [(PRODUCT, frozenset(extras_provided) - {UNSHIPPED})]
    queued, extras_of = set(todo), dict[str, set[str]]()
    while todo:
        name, extras = todo.pop()
        needs = extras_of.setdefault(name, set())
        for requirement in requirements(name, extras):
            below = canonicalize_name(requirement.name)
            try:
                metadata.distribution(below)
            except metadata.PackageNotFoundError:
                continue  # of an extra that is not installed
            needs.add(below)
            if (key := (str(below), frozenset(requirement.extras))) not in queued:
                queued.add(key)
                todo.append(key)
    return {name: tuple(sorted(needs)) for name, needs in sorted(extras_of.items())}


def sbom() -> dict[str, Any]:
    """Return the bill of materials of this environment; the same for the same environment."""
    needs_of = installed()
    about = {name: _component(name) for name in needs_of}
    dependencies = []
    for name, needs in needs_of.items():
        refs = [about[needed]["bom-ref"] for needed in needs]
        dependencies.append({"ref": about[name]["bom-ref"], "dependsOn": refs})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**about[PRODUCT], "type": "application"}},
        "components": [component for name, component in about.items() if name != PRODUCT],
        "dependencies": dependencies,
    }


def _component(name: str) -> dict[str, Any]:
    meta, version = metadata.metadata(name), metadata.version(name)
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version.replace('+', '%2B')}"
    component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if expression := (meta.get_all("License-Expression") or [""])[0]:
        return {**component, "licenses": [{"expression": expression}]}
    classifiers = [text.rpartition(" :: ") for text in meta.get_all("Classifier") or []]
    if names := [name for kind, _, name in classifiers if kind.startswith("License")]:
        return {**component, "licenses": [{"license": {"name": name}} for name in names]}
    return component


def pins(path: Path) -> dict[str, str]:
    """Return name and version of each line of a constraints file."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    parts = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, _, version in parts}


def advisories(place: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the advisories of a file, a folder or a zip of them.

    Raises:
        ValueError: a document is no advisory.
        OSError: a file cannot be read.
    """
    if place.is_dir():
        for file in sorted(place.glob("*.json")):
            yield from advisories(file)
    elif zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as archive:
            for name in archive.namelist():
                if not name.endswith("/"):
                    yield _advisory(archive.read(name), f"{place}/{name}")
    else:
        yield _advisory(place.read_bytes(), str(place))


def _advisory(data: bytes, where: str) -> Mapping[str, Any]:
    """Return one document; OSV demands that it has an id."""
    document = json.loads(data)
    if not isinstance(document, dict) or not document.get("id"):
        raise ValueError(f"{where} is no advisory")
    return document


def is_about_pypi(advisory: Mapping[str, Any]) -> bool:
    """Return whether an advisory is about a package of PyPI; others say nothing of ours."""
    packages = [affected.get("package", {}) for affected in advisory.get("affected", ())]
    return any(package.get("ecosystem") == "PyPI" for package in packages)


def affects(advisory: Mapping[str, Any], name: str, version: str) -> bool:
    """Return whether an advisory that was not withdrawn is about this version."""
    for affected in advisory.get("affected", ()) if "withdrawn" not in advisory else ():
        package = affected.get("package", {})
        if package.get("ecosystem") != "PyPI" or canonicalize_name(package["name"]) != name:
            continue
        ranges = [r for r in affected.get("ranges", ()) if r.get("type") == "ECOSYSTEM"]
        if version in affected.get("versions", ()) or any(_is_within(r, version) for r in ranges):
            return True
    return False


def _is_within(spread: Mapping[str, Any], version: str) -> bool:
    """Follow the events in order, as the schema's own algorithm does."""
    at, is_in = Version(version), False
    events = [(_version(text), kind) for event in spread["events"] for kind, text in event.items()]
    for since, kind in sorted(events, key=lambda event: event[0]):
        if kind == "introduced" and at >= since:
            is_in = True
        elif (kind == "fixed" and at >= since) or (kind == "last_affected" and at > since):
            is_in = False
    return is_in


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:  # of releases before PEP 440
        return Version("0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit."""

    advisories_read: int  # about packages of PyPI
    lines: tuple[str, ...]  # one for each advisory about one of the versions


def audit(versions: Mapping[str, str], place: Path) -> Audit:
    """Compare the versions of packages with all advisories of a place.

    Raises:
        ValueError: a document is no advisory.
        OSError: the place cannot be read.
    """
    n_read, lines = 0, list[str]()
    for advisory in filter(is_about_pypi, advisories(place)):
        n_read += 1
        packages = [affected.get("package", {}) for affected in advisory["affected"]]
        names = {canonicalize_name(package["name"]) for package in packages if "name" in package}
        for name in sorted(names & versions.keys()):
            if affects(advisory, name, versions[name]):
                lines.append(_line(advisory, name, versions[name]))
    return Audit(advisories_read=n_read, lines=tuple(lines))


def _line(advisory: Mapping[str, Any], name: str, version: str) -> str:
    words = (advisory["id"], *advisory.get("aliases", ()), str(advisory.get("summary", ""))[:200])
    return f"{name} {version}: {' '.join(words)}"


def main() -> int:
    """Do it; 1 if an advisory is about a version, 2 if no advisory was read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("sbom").add_argument("--out", type=Path, help="else: standard output")
    auditing = verbs.add_parser("audit")
    # No Path: an empty one would be the working directory.
    auditing.add_argument("--advisories", default=os.environ.get(VARIABLE, ""))
    auditing.add_argument("--pinned", type=Path, help="a constraints file instead")
    options = parser.parse_args()
    if options.verb == "sbom":
        text = json.dumps(sbom(), indent=1) + "\n"
        options.out.write_text(text, encoding="utf-8") if options.out else sys.stdout.write(text)
        return 0
    if not options.advisories.strip():
        print(f"No place of advisories is named: {ADVICE}")
        return 2
    versions = (
        pins(options.pinned) if options.pinned else {n: metadata.version(n) for n in installed()}
    )
    try:
        audited = audit(versions, Path(options.advisories))
    except (OSError, ValueError, zipfile.BadZipFile) as problem:
        print(f"The advisories at '{options.advisories}' cannot be read: {problem}\n{ADVICE}")
        return 2
    counts = f"{len(versions)} packages, {audited.advisories_read} advisories read"
    print("\n".join([*audited.lines, f"{counts}, {len(audited.lines)} about these packages"]))
    if not audited.advisories_read:
        print(f"There is no advisory at '{options.advisories}': nothing was compared. {ADVICE}")
        return 2
    return 1 if audited.lines else 0


if __name__ == "__main__":
    sys.exit(main())
