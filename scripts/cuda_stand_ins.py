"""Makes stand-ins for the CUDA libraries that a wheel of torch needs, where there is no GPU.

A wheel from PyPI asks for gigabytes of NVIDIA's libraries when it is imported, and a machine
without a GPU calls none of them. For each one that is missing this compiles a library of the same
name with the functions that torch looks for; one that is called ends the process. Whatever was
tested so has run on the processor alone. Used by ``try_versions``.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

COMPILER = "gcc"
_NEEDED = re.compile(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]")
_SONAME = re.compile(r"\(SONAME\)\s+Library soname: \[([^\]]+)\]")
# Name, and version where there is one, of a symbol in the output of readelf.
_SYMBOL = re.compile(
    r"^ *\d+: +[0-9a-f]+ +\S+ +(\S+) +(\S+) +\S+ +(\S+) +([^\s@]+)(?:@+(\S+))?", re.MULTILINE
)
_VERSION_FILE = re.compile(r"Version: \d+\s+File: (\S+)")
_VERSION_NAME = re.compile(r"Name: (\S+)\s+Flags:")
# What the loader finds without us.
OF_SYSTEM = (
    *("libc.so", "libm.so", "libdl.so", "librt.so", "libpthread.so", "libgcc_s.so"),
    *("libstdc++.so", "ld-linux", "libutil.so"),
)


def readelf(path: Path, *options: str) -> str:
    """Return what readelf says of a library."""
    argv = ["readelf", "-W", *options, str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def libraries_in(directory: Path) -> list[Path]:
    """Return the shared libraries below a directory."""
    return sorted(p for p in directory.rglob("*.so*") if p.is_file() and not p.is_symlink())


def needs(path: Path) -> list[str]:
    """Return the names of the libraries that one needs."""
    return _NEEDED.findall(readelf(path, "-d"))


def versions_needed(path: Path) -> dict[str, set[str]]:
    """Return which versions of symbols a library needs, by the library that is to have them."""
    symbols: dict[str, set[str]] = defaultdict(set)
    library = ""
    for line in readelf(path, "-V").splitlines():
        if match := _VERSION_FILE.search(line):
            library = match[1]
        elif library and (match := _VERSION_NAME.search(line)):
            symbols[library].add(match[1])
    return symbols


def symbols_of(path: Path) -> Iterator[tuple[str, str, str, bool]]:
    """Yield name, version, kind and whether it is there, of each symbol that is shared."""
    for kind, binding, place, name, version in _SYMBOL.findall(readelf(path, "--dyn-syms")):
        if binding in ("GLOBAL", "WEAK", "UNIQUE"):
            is_there = place != "UND"
            if is_there or binding != "WEAK":
                yield name, version, kind, is_there


def write_missing(site: Path, into: Path) -> list[str]:
    """Write a stand-in for each library that torch in a site directory needs and lacks.

    Returns their names.

    Raises:
        subprocess.CalledProcessError: one cannot be compiled.
    """
    libraries = [*libraries_in(site / "torch"), *libraries_in(site / "nvidia")]
    present = {path.name for path in libraries} | {
        name for path in libraries for name in _SONAME.findall(readelf(path, "-d"))
    }
    libraries_needed = {name for path in libraries for name in needs(path)}
    missing = sorted(n for n in libraries_needed - present if not n.startswith(OF_SYSTEM))
    if not missing:
        return []
    unversioned, versioned = _undefined(libraries)
    nodes: dict[str, set[str]] = defaultdict(set)
    for path in libraries:
        for library, names in versions_needed(path).items():
            nodes[library] |= names
    into.mkdir(exist_ok=True)
    for number, name in enumerate(missing):
        symbols_of = {v: versioned.get(v, set()) for v in sorted(nodes.get(name, ()))}
        plain = unversioned if number == 0 else set()  # any library may have them
        _compile(into, name, symbols_of, plain)
    return missing


def _undefined(libraries: Iterable[Path]) -> tuple[set[str], dict[str, set[str]]]:
    """Return the symbols that no library has: without a version, and by their version."""
    requests: set[tuple[str, str]] = set()
    provided: set[str] = set()
    for path in libraries:
        for name, version, _, is_there in symbols_of(path):
            if is_there:
                provided.add(name)
            else:
                requests.add((name, version))
    plain = {name for name, version in requests if not version and name not in provided}
    plain = {name for name in plain if not name.startswith(("Py", "_Py"))}  # of the interpreter
    versioned: dict[str, set[str]] = defaultdict(set)
    for name, version in requests:
        if version and name not in provided:
            versioned[version].add(name)
    return plain, versioned


def _compile(into: Path, name: str, versioned: dict[str, set[str]], plain: set[str]) -> None:
    source, script = into / f"{name}.c", into / f"{name}.map"
    names = sorted(plain.union(*versioned.values()))
    lines = [f'void {name}(void) {{ end("{name}"); }}' for name in names if name.isidentifier()]
    head = (
        "#include <stdio.h>\n#include <stdlib.h>\n"
        f'static void end(const char *what) {{ fprintf(stderr, "stand-in of {name}: %s\\n", what);'
        " abort(); }\n"
    )
    source.write_text(head + "\n".join(lines) + "\n")
    argv = [COMPILER, "-shared", "-fPIC", "-w", "-O0", "-fno-builtin", "-o", str(into / name)]
    argv += [f"-Wl,-soname,{name}", str(source)]
    if versioned:
        parts = [
            f"{node} {{ global: {' '.join(map('{};'.format, sorted(members)))} }};"
            for node, members in versioned.items()
        ]
        script.write_text("\n".join(parts) + "\n")
        argv.append(f"-Wl,--version-script={script}")
    subprocess.run(argv, check=True)
    source.unlink()
    script.unlink(missing_ok=True)
