"""The experiments of section 6, their instances, the assumptions, and the published values.

The means of Tables 1, 2 and 4 stand there as the paper prints them, ``19:24 ± 00:26``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.lab.papers.findings import read_expected
from bftrainer.lab.papers.paper import Extent
from bftrainer.study.plan.problem import Billing, Cloud, Experiment, sha_stages

GPUS_PER_INSTANCE = 4  # p3.8xlarge
PRICE_H = 12.24  # the static plan of 40 min gives it to 0.3%
LATENCY_S = 15.0  # of initialisation and of scaling, section 6.3.1
MINUTE_S = 60.0

RESNET101: Experiment = sha_stages(32, 1, 50, 3)  # Tables 2 and 3
TABLE_3 = (32, 20, 12, 8)  # GPUs of the stages
DEADLINES_MIN = (20, 30, 40)


def study(trials: int, most: int = 508) -> Experiment:
    """Return the simulated study of so many trials: SHA(n, 4, R, 2), section 6.1."""
    return sha_stages(trials, 4, most, 2)


ASSUMED = {
    "SHA(n, r, R, eta)": "floor(n / eta^k) trials train r eta^k iterations more in stage k, the "
    "last stage up to R: the ranges of Table 3",
    "price": f"{PRICE_H:g} $ per hour of p3.8xlarge, which the static plan of 40 min gives to 0.3%",
    "billing": "an instance costs from when it is there, scaling is waited for and not billed, "
    "no minimum charge",
    "share": "trials share GPUs equally and rounded down; if there are fewer, one trial after the "
    "other trains on each",
    "ResNet-101": "the profile is not published: A is smooth and nearest to static 30 and 40 and "
    "RubberBand 20 of Table 2, B to five rows, C lies between; D was fitted to all rows with the "
    "planners in the loop; E is the linear program's for the rows of A, with Table 3's plan as "
    "RubberBand's: that the exact plan under E has Table 3's instances shows that a profile goes "
    "with that plan, and is no prediction",
    "ResNet-50": "not published beyond Table 1 (4 GPUs): the ring of Table 1 with 10 Gbit/s "
    "between instances; or 6% lost with each doubling, on and on; or the same up to some GPUs and "
    "no gain beyond",
    "deadlines": "20 min in Fig. 9, as in Fig. 11; several from 10 to 30 min in Fig. 10",
    "stragglers": "normal numbers, at least 5% of their mean; drawn for each iteration, or once "
    "for each trial of a stage; both plans of Fig. 9 are made without stragglers, with sigma 10 s "
    "they take 33 to 55 min instead of 20",
    "Algorithm 2": "literal: a step goes to the next allocation that trials can share, and a late "
    "step ends the search; repaired: it goes on until an instance is free, and passes over late "
    "steps",
}


def cloud(
    *,
    init_s: float = 0.0,
    scale_s: float = 0.0,
    billing: Billing = Billing.INSTANCE,
    data_price: float = 0.0,
) -> Cloud:
    """Return p3.8xlarge."""
    return Cloud(
        gpus_per_instance=GPUS_PER_INSTANCE,
        price_h=PRICE_H,
        init_s=init_s,
        scale_s=scale_s,
        billing=billing,
        data_price=data_price,
    )


WARM_POOL = cloud(init_s=LATENCY_S, scale_s=LATENCY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """As many equal instances as one likes."""

    is_papers: bool = True

    def remarks(self) -> list[str]:
        """Return the assumptions."""
        return [f"Assumed, {what}: {assumed}." for what, assumed in ASSUMED.items()]

    def summary(self) -> str:
        """Return one sentence for the report."""
        return (
            "Studies on p3.8xlarge (4 GPUs), planned with the planners of bftrainer study plan: "
            "static, naive, the paper's Algorithm 2, and exact."
        )

    def document(self) -> dict[str, Any]:
        """Return the section ``cloud`` of the JSON document."""
        return {
            "cloud": {
                "gpus_per_instance": GPUS_PER_INSTANCE,
                "price_h": PRICE_H,
                "assumed": dict(ASSUMED),
            }
        }


def choose_scenario(_: Path | None, __: Path | None, ___: Extent) -> Rented:
    """Return the paper's cloud; there is nothing to read."""
    return Rented()


@dataclass(frozen=True, slots=True, kw_only=True)
class Points(Extent):
    """The points of the figures, and the sizes of samples."""

    samples: int  # of stragglers
    data_deadlines_min: tuple[int, ...]  # Fig. 10
    trials: tuple[int, ...]  # Fig. 11
    init_deadlines_min: tuple[int, ...]  # Fig. 12
    flat_from: tuple[int, ...]  # Fig. 12: no gain beyond so many GPUs
    slack: tuple[float, ...]  # Table 4: deadline over the least possible
    placements: int  # Algorithm 3


FULL = Points(
    name="full",
    samples=400,
    data_deadlines_min=(10, 12, 15, 20, 25, 30),
    trials=(16, 32, 64, 128, 256, 512),
    init_deadlines_min=(90, 100, 110, 120, 130, 140, 150, 160),
    flat_from=(11, 12, 13, 14, 16, 20, 24, 32),
    slack=(1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5),
    placements=400,
)
QUICK = Points(
    name="quick",
    shortened="3 deadlines instead of 6 (Fig. 10) and 8 (Fig. 12), 4 numbers of trials instead of "
    "6, 100 samples instead of 400, 100 runs of placements instead of 400.",
    samples=100,
    data_deadlines_min=(10, 15, 20),
    trials=(16, 64, 128, 512),
    init_deadlines_min=(90, 120, 160),
    flat_from=(11, 13, 16, 32),
    slack=(1.05, 1.2, 1.5, 2.5),
    placements=100,
)


EXPECTED = read_expected(__package__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A published mean of several runs, and what is printed after it; times are in minutes."""

    value: float
    spread: float = 0.0


def means(table: str, row: str) -> list[Mean]:
    """Return the means of a row by column."""
    return [_read(text) for text in EXPECTED.tables[table]["rows"][row]]


def _read(printed: str) -> Mean:
    value, _, spread = printed.partition(" ± ")
    return Mean(value=_number(value), spread=_number(spread or "0"))


def _number(printed: str) -> float:
    minutes, colon, seconds = printed.partition(":")
    return int(minutes) + int(seconds) / 60.0 if colon else float(printed)
