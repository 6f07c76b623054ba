"""Numbers as Slurm prints them: counts, and generic resources (GPUs). Pure; used by ``parse``."""

from __future__ import annotations

import math
import re

from bftrainer.model.hostlist import ParseError
from slurm_plugins.user_text import LONGEST

_WHOLE = re.compile(r"[0-9]{1,18}")
_SHORT = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)([KM])")  # without --noconvert
# A number at the end is the count; what precedes it is the type (4090, 1g.10gb).
_GRES = re.compile(
    r"(?:gres[:/])?gpu(?::(?![0-9.]+[KM]?$)([^:,(=]+))?(?::no_consume)?"
    r"(?:([:=])([0-9]{1,9}(?:\.[0-9]{1,6})?[KM]?))?"
)
_IN_PARENTHESES = re.compile(r"\([^()]*\)")


def whole(text: str) -> int:
    """Parse a count, also ``1K`` (1024); sinfo appends ``+`` to the smallest of several."""
    text = text.strip().removesuffix("+")
    if _WHOLE.fullmatch(text):
        return int(text)
    found = _SHORT.fullmatch(text)
    if found is None:
        raise ParseError(f"not a whole number: {text[:40]!r}")
    return int(float(found[1]) * 1024 ** (1 + "KM".index(found[2])))


def gpus_of(gres: str) -> tuple[int, str]:
    """Return the number of GPUs in a generic-resource string, and a name for what it describes.

    ``gpu:a100:4(S:0-1),nvme:1`` gives ``(4, "gpu:a100:4")``, none gives ``(0, "cpu")``.

    Raises:
        ParseError: it is too long.
    """
    if len(gres) > LONGEST:
        raise ParseError(f"generic resources of {len(gres)} characters: {gres[:80]!r}")
    found: list[tuple[str, int]] = []  # type and number
    in_all = 0
    for item in _IN_PARENTHESES.sub("", gres).split(","):
        if matched := _GRES.fullmatch(item.strip()):
            kind, mark, number = matched.groups()
            count = 1 if number is None else _gpus(number)
            if mark == "=" and kind is None:  # TRES: of all types together
                in_all = max(in_all, count)
            else:
                found.append((kind or "", count))
    found.append(("", max(0, in_all - sum(count for _, count in found))))
    kinds = [":".join(filter(None, ("gpu", kind, str(count)))) for kind, count in found if count]
    return sum(count for _, count in found), ",".join(kinds) or "cpu"


def _gpus(number: str) -> int:
    """Return a number of GPUs; parts of one count as one."""
    return whole(number) if number[-1] in "KM" else math.ceil(float(number))
