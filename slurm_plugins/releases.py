"""The releases of Slurm that are known: output and behaviour of others are not; and of munge.

Under an unknown release, older or newer, nodes and jobs are shown and pilots given back, but none
is started, unless the option ``accept_release`` names it. The commands and the controller may be of
two releases. Called by ``snapshot``, ``adapter`` and ``doctor``.
"""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

from bftrainer.batch import process
from bftrainer.batch.batch_system import observed_only
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.site import Finding, Weight

KNOWN = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")
PATTERN = r"[0-9]{2}\.[0-9]{2}"
CODE = "BFT-1571"
_VERSION = re.compile(rf"(?:slurm(?:-wlm)? )?({PATTERN})\.[0-9]{{1,3}}(?:[-~+.][-~+.\w]{{0,40}})?")
_MUNGE = re.compile(r"munge-(([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4}))")
_SBIN = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/opt/munge/sbin"


def release_of(version: str) -> str:
    """Return the release of a version, 23.11 of ``slurm 23.11.4``.

    Raises:
        ParseError: it is none.
    """
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise ParseError(f"not a version of Slurm: {version.strip()[:40]!r}")
    return match[1]


def unknown_among(*found: str, accepted: str) -> str:
    """Return the first release that is neither known nor accepted; "": all are."""
    for release in found:
        if release not in KNOWN and release != accepted:
            return release
    return ""


def _words(release: str) -> tuple[str, str]:
    """Return what an unknown release is, and what helps."""
    cause = f"This Slurm is of release {release}, bftrainer knows {KNOWN[0]} to {KNOWN[-1]}"
    condition = "when 'bftrainer doctor --try-release' has passed there"
    return cause, f"a bftrainer that knows it; or, {condition}, {option(release)}"


def option(release: str) -> str:
    """Return the line of the policy that accepts a release."""
    return f'batch_options: {{accept_release: "{release}"}}'


def not_known(why: str) -> BatchSystemError:
    """Return the error that the release cannot be asked for."""
    cause = f"The release of this Slurm cannot be read: {why}"
    return BatchSystemError("BFT-1575", cause, "Repeat it where scontrol show config answers.")


def sentence(release: str) -> str:
    """Say what an unknown release means, and what to do."""
    page = "docs/howto/slurm-site.md#releases"
    cause, _ = _words(release)
    return f"{CODE}: {observed_only(cause, page)}"


def refusal(release: str) -> BatchSystemError:
    """Return the error that no pilot is started."""
    cause, remedy = _words(release)
    return BatchSystemError(CODE, f"{cause}: no pilot is started.", f"{remedy}.")


def finding(release: str) -> Finding:
    """Return what ``doctor`` says."""
    _, remedy = _words(release)
    return Finding(
        code=CODE,
        weight=Weight.STOP,
        setting=f"Slurm {release}",
        cost=f"Nodes are watched, none is used: bftrainer knows {KNOWN[0]} to {KNOWN[-1]}.",
        remedy=remedy,
        command="bftrainer doctor --try-release",
    )


MUNGE_CURED, MUNGE_HOLE = (0, 5, 18), "CVE-2026-25506"


def old_munge(path: str = _SBIN, debian: Path = Path("/usr/share/doc/munge")) -> str:
    """Return the release of munge on this host if it has a known hole; "": it has not, or unknown.

    Distributions mend older releases, and name the hole in their changes.

    Args:
        path: where munged and rpm are.
        debian: where Debian's package keeps its changes.
    """
    munged = shutil.which("munged", path=path)
    if munged is None:
        return ""
    match = _MUNGE.match(process.run((munged, "--version"), timeout_s=10).stdout)
    if match is None:
        return ""
    release, *numbers = match.groups()
    if tuple(map(int, numbers)) >= MUNGE_CURED:
        return ""
    try:
        changes = _changes_of(munged, path, debian)
    except (OSError, ValueError, EOFError):
        return ""
    if MUNGE_HOLE in changes:
        return ""
    return str(release)


def _changes_of(program: str, path: str, debian: Path) -> str:
    """Return the changes of a program's package, of rpm or of Debian; "": it has none."""
    rpm = shutil.which("rpm", path=path)
    if rpm is not None:
        answer = process.run((rpm, "-qf", "--changelog", program), timeout_s=10)
        if answer.is_ok and answer.stdout:
            return answer.stdout
    if debian.exists():
        return gzip.decompress((debian / "changelog.Debian.gz").read_bytes()).decode()
    return ""
