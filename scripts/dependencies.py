#!/usr/bin/env python3
"""What the product is installed with: a bill of materials, and an audit against advisories.

    scripts/dependencies.py sbom [--out FILE]
    scripts/dependencies.py audit [--advisories PLACE] [--pinned FILE]

Reads the metadata of installed distributions, from bftrainer along its requirements and extras but
``dev``. Nothing is asked of the network: ``PLACE`` is a copy of OSV's export for PyPI (all.zip of
https://osv-vulnerabilities.storage.googleapis.com/PyPI/), a folder of such files, or one of them;
by default $BFTRAINER_ADVISORIES. Formats: CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/) and
OSV (https://ossf.github.io/osv-schema/).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

PRODUCT, UNSHIPPED = "bftrainer", "dev"
VARIABLE = "BFTRAINER_ADVISORIES"


def requirements(name: str, extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what an installed distribution needs here, with these extras."""
    for line in metadata.requires(name) or ():
        found = Requirement(line)
        marker = found.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield found


def installed() -> dict[str, tuple[str, ...]]:
    """Return the product and all below it that is installed, each with the names it needs."""
    own = metadata.metadata(PRODUCT).get_all("Provides-Extra") or []
    todo = [(PRODUCT, frozenset(own) - {UNSHIPPED})]
    seen, found = set(todo), dict[str, set[str]]()
    while todo:
        name, extras = todo.pop()
        needs = found.setdefault(name, set())
        for one in requirements(name, extras):
            below = canonicalize_name(one.name)
            try:
                metadata.distribution(below)
            except metadata.PackageNotFoundError:
                continue  # of an extra that is not installed
            needs.add(below)
            if (key := (str(below), frozenset(one.extras))) not in seen:
                seen.add(key)
                todo.append(key)
    return {name: tuple(sorted(needs)) for name, needs in sorted(found.items())}


def sbom() -> dict[str, Any]:
    """Return the bill of materials of this environment; the same for the same environment."""
    found = installed()
    about = {name: _component(name) for name in found}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**about[PRODUCT], "type": "application"}},
        "components": [one for name, one in about.items() if name != PRODUCT],
        "dependencies": [
            {"ref": about[name]["bom-ref"], "dependsOn": [about[n]["bom-ref"] for n in needs]}
            for name, needs in found.items()
        ],
    }


def _component(name: str) -> dict[str, Any]:
    meta, version = metadata.metadata(name), metadata.version(name)
    purl = f"pkg:pypi/{canonicalize_name(name)}@{version.replace('+', '%2B')}"
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if expression := (meta.get_all("License-Expression") or [""])[0]:
        return {**found, "licenses": [{"expression": expression}]}
    told = [text.rpartition(" :: ") for text in meta.get_all("Classifier") or []]
    if names := [name for kind, _, name in told if kind.startswith("License")]:
        return {**found, "licenses": [{"license": {"name": name}} for name in names]}
    return found


def pins(path: Path) -> dict[str, str]:
    """Return name and version of each line of a constraints file."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    parts = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, _, version in parts}


def advisories(place: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the advisories of a file, a folder or a zip of them."""
    if place.is_dir():
        for file in sorted(place.glob("*.json")):
            yield from advisories(file)
    elif zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as held:
            for name in held.namelist():
                yield json.loads(held.read(name))
    else:
        yield json.loads(place.read_bytes())


def affects(advisory: Mapping[str, Any], name: str, version: str) -> bool:
    """Return whether an advisory that was not withdrawn is about this version."""
    for one in advisory.get("affected", ()) if "withdrawn" not in advisory else ():
        package = one.get("package", {})
        if package.get("ecosystem") != "PyPI" or canonicalize_name(package["name"]) != name:
            continue
        ranges = [r for r in one.get("ranges", ()) if r.get("type") == "ECOSYSTEM"]
        if version in one.get("versions", ()) or any(_is_within(r, version) for r in ranges):
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


def audit(versions: Mapping[str, str], place: Path) -> list[str]:
    """Return a line for each advisory about one of these versions."""
    return [
        f"{name} {versions[name]}: {one['id']} {' '.join(one.get('aliases', ()))} "
        f"{str(one.get('summary', ''))[:200]}"
        for one in advisories(place)
        for name in {canonicalize_name(a["package"]["name"]) for a in one.get("affected", ())
                     if "package" in a}
        if name in versions and affects(one, name, versions[name])
    ]  # fmt: skip


def main() -> int:
    """Do it; 1 if an advisory was found, 2 without a copy of advisories."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("sbom").add_argument("--out", type=Path, help="else: standard output")
    auditing = verbs.add_parser("audit")
    auditing.add_argument("--advisories", type=Path, default=os.environ.get(VARIABLE, ""))
    auditing.add_argument("--pinned", type=Path, help="a constraints file instead")
    asked = parser.parse_args()
    if asked.verb == "sbom":
        text = json.dumps(sbom(), indent=1) + "\n"
        asked.out.write_text(text, encoding="utf-8") if asked.out else sys.stdout.write(text)
        return 0
    place = Path(asked.advisories)
    if not asked.advisories or not place.exists():
        print(f"There is no copy of OSV's advisories at '{asked.advisories}': set ${VARIABLE}.")
        return 2
    versions = pins(asked.pinned) if asked.pinned else {n: metadata.version(n) for n in installed()}
    found = audit(versions, place)
    print("\n".join([*found, f"{len(versions)} packages, {len(found)} advisories"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
