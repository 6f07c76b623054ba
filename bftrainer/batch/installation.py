"""Whether a site's files are installed as ``bftrainer site init`` writes them.

Called by ``bftrainer doctor``; reads files of this host only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

from bftrainer.batch.service_files import SERVICE_NAME
from bftrainer.model.site import Finding, SiteFile, Weight

MAX_BYTES: Final = 1 << 20
_ENABLED: Final = f"/etc/systemd/system/multi-user.target.wants/{SERVICE_NAME}"


def findings(files: Sequence[SiteFile], root: Path = Path("/")) -> tuple[Finding, ...]:
    """Return a finding for each file that is missing or differs, and for a disabled service.

    Args:
        files: of the site.
        root: of the host's file system.
    """
    found = [one for file in files if file.path for one in _of(file, root)]
    is_there = all(one.code != "BFT-1501" or SERVICE_NAME not in one.setting for one in found)
    if is_there and not os.path.lexists(_below(root, _ENABLED)):
        found.append(
            Finding(
                code="BFT-1503",
                weight=Weight.LOSS,
                setting=f"{SERVICE_NAME} is not enabled",
                cost="Nothing starts the daemon at boot.",
                remedy="systemctl enable --now bftrainer",
            )
        )
    return tuple(found)


def _of(file: SiteFile, root: Path) -> Iterator[Finding]:
    # A package installs the same file below /usr/lib; what is in /etc comes before it.
    places = [file.path, f"/usr/lib/{file.path.removeprefix('/etc/')}"]
    text = next((text for place in places if (text := _text(_below(root, place)))), "")
    remedy = f"bftrainer site init --write, then: install {file.name} as {file.path}"
    if not text and file.without:
        yield Finding(
            code="BFT-1501",
            weight=Weight.LOSS,
            setting=f"{file.path} is missing",
            cost=file.without,
            remedy=remedy,
        )
    elif text and text != file.text and (file.without or _is_ours(text, file)):
        yield Finding(
            code="BFT-1502",
            weight=Weight.LOSS,
            setting=f"{file.path} is not the file of this release and site",
            cost=_difference(text, file.text),
            remedy=remedy,
        )


def _is_ours(text: str, file: SiteFile) -> bool:
    """Whether it is an other version of our file, and not the site's that ours was merged into."""
    return text.partition("\n")[0] == file.text.partition("\n")[0]


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _text(path: Path) -> str:
    """Return what is in a file; "": it is missing, or nobody could use it."""
    try:
        with path.open("rb") as opened:
            return opened.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _difference(here: str, ours: str) -> str:
    lines = zip_longest(here.split("\n"), ours.split("\n"), fillvalue="nothing")
    number, (has, wants) = next(
        (n, pair) for n, pair in enumerate(lines, start=1) if pair[0] != pair[1]
    )
    return f"Line {number} is {has.strip()!r}, not {wants.strip()!r}."
