"""Settings of the rules that compare trials at the rungs of one ladder. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from bftrainer.study.rungs.ranking import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """What ``asha``, ``sha`` and ``stopping`` are told."""

    name: ClassVar[str]

    trials: int
    least: int = 1
    most: int
    eta: int = 3

    def __post_init__(self) -> None:
        require(
            trials=(self.trials, 1),
            least=(self.least, 1),
            most=(self.most, self.least),
            eta=(self.eta, 2),
        )

    @property
    def wanted(self) -> int:
        """Trials that it starts."""
        return self.trials

    def describe(self) -> Mapping[str, Any]:
        """Return the rule's name and settings."""
        return {"name": self.name, **asdict(self)}
