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


def release_of(version: str) -> str:
    """Return the release of a version, 23.11 of ``slurm 23.11.4``.

    Raises:
        ParseError: it is none.
    """
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        raise ParseError(f"not a version of Slurm: {version.strip()[:40]!r}")
    return found[1]


def unknown_among(*found: str, accepted: str) -> str:
    """Return the first release that is neither known nor accepted; "": all are."""
    return next((one for one in found if one not in KNOWN and one != accepted), "")


def _words(release: str) -> tuple[str, str]:
    """Return what an unknown release is, and what helps."""
    what = f"This Slurm is of release {release}, bftrainer knows {KNOWN[0]} to {KNOWN[-1]}"
    tried = "when 'bftrainer doctor --try-release' has passed there"
    return what, f"a bftrainer that knows it; or, {tried}, {option(release)}"


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
    return f"{CODE}: {observed_only(_words(release)[0], page)}"


def refusal(release: str) -> BatchSystemError:
    """Return the error that no pilot is started."""
    what, remedy = _words(release)
    return BatchSystemError(CODE, f"{what}: no pilot is started.", f"{remedy}.")


def finding(release: str) -> Finding:
    """Return what ``doctor`` says."""
    return Finding(
        code=CODE,
        weight=Weight.STOP,
        setting=f"Slurm {release}",
        cost=f"Nodes are watched, none is used: bftrainer knows {KNOWN[0]} to {KNOWN[-1]}.",
        remedy=_words(release)[1],
        command="bftrainer doctor --try-release",
    )


MUNGE_CURED, MUNGE_HOLE = (0, 5, 18), "CVE-2026-25506"
_MUNGE = re.compile(r"munge-(([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4}))")
_SBIN = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/opt/munge/sbin"


def old_munge(path: str = _SBIN, debian: Path = Path("/usr/share/doc/munge")) -> str:
    """Return the release of munge on this host if it has a known hole; "": it has not, or unknown.

    Distributions mend older releases, and name the hole in their changes.

    Args:
        path: where munged and rpm are.
        debian: where Debian's package keeps its changes.
    """
    munged, rpm = (shutil.which(name, path=path) for name in ("munged", "rpm"))
    done = process.run((munged, "--version"), timeout_s=10) if munged else None
    found = _MUNGE.match(done.stdout) if done else None
    if munged is None or found is None or tuple(map(int, found.groups()[1:])) >= MUNGE_CURED:
        return ""
    changes = ""
    try:
        if of_rpm := rpm and process.run((rpm, "-qf", "--changelog", munged), timeout_s=10):
            changes = of_rpm.stdout if of_rpm.is_ok else ""
        if not changes and debian.exists():
            changes = gzip.decompress((debian / "changelog.Debian.gz").read_bytes()).decode()
    except (OSError, ValueError, EOFError):
        return ""
    return "" if MUNGE_HOLE in changes else found[1]
