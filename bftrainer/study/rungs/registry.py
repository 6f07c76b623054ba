"""The rules by name, made from the settings of a study document. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from bftrainer.study.rungs.asha import Asha
from bftrainer.study.rungs.hyperband import Hyperband
from bftrainer.study.rungs.median import Median
from bftrainer.study.rungs.none import Full
from bftrainer.study.rungs.pbt import Pbt
from bftrainer.study.rungs.sha import Sha
from bftrainer.study.rungs.stopping import Stopping
from bftrainer.study.trials import CountedRule

RULES: Final[Mapping[str, Callable[..., CountedRule]]] = {
    "asha": Asha,
    "hyperband": Hyperband,
    "median": Median,
    "none": Full,
    "pbt": Pbt,
    "sha": Sha,
    "stopping": Stopping,
}


def keys_of(name: str) -> dict[str, int | None]:
    """Return the settings of a rule and their defaults; None: it is required."""
    return {
        one.name: None if one.default is MISSING else one.default
        for one in fields(RULES[name])  # type: ignore[arg-type]  # each is a dataclass
    }


def rule_of(settings: Mapping[str, Any]) -> CountedRule:
    """Return the rule that a study document asks for; ``describe`` is the way back.

    Raises:
        ValueError: names the setting that is missing, unknown or out of its range.
    """
    name = settings.get("name")
    if name is None:
        raise ValueError(f"name is missing; one of {', '.join(RULES)}")
    if not isinstance(name, str) or name not in RULES:
        raise ValueError(f"name is {name!r}; {_meant(str(name), list(RULES))}")
    known = keys_of(name)
    given = {key: value for key, value in settings.items() if key != "name"}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{key} is not a setting of {name}; {_meant(key, list(known))}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{key} is {value!r}; a whole number is required")  # noqa: TRY004
    for key, default in known.items():
        if default is None and key not in given:
            raise ValueError(f"{key} is missing; {name} needs it")
    return RULES[name](**given)


def _meant(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given[:80], known, n=1)
    return f"did you mean {close[0]}?" if close else f"one of {', '.join(known)}"
