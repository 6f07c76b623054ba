"""The figures of a grid as a table, and as values for its JSON file."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from _bench.site.measures import Judged, added_wait
from _bench.targets import console, new_table

HEADINGS = ("cell", "seeds", "starts", "lost /1,000", "without", "preempt.", "avoidable",
            "waits, s", "added wait", "held", "asked", "/ first step", "refused", "decide",
            "CPU")  # fmt: skip


def print_cells(name: str, judged: Sequence[Judged]) -> None:
    """Print a row for each cell."""
    rows = []
    for judgement in judged:
        wait = added_wait(judgement.blocks)
        row = (
            judgement.cell.name,
            str(judgement.seeds),
            str(judgement.starts),
            f"{judgement.lost_per_1000['bftrainer']:.1f}",
            f"{judgement.lost_per_1000['without']:.1f}",
            f"{judgement.lost_per_1000['preemptable']:.1f}",
            f"{1000.0 * judgement.avoidable / max(1, judgement.starts):.1f}",
            " ".join(
                f"{judgement.wait_s[arm]:.0f}" for arm in ("without", "bftrainer", "preemptable")
            ),
            f"{100 * wait.mean:+.1f}% ({100 * wait.low:+.1f} to {100 * wait.high:+.1f})",
            f"{100 * judgement.of_oracle:.0f}%",
            f"{judgement.submissions_per_node_h:.1f}",
            f"{judgement.pilots_per_first_step:.2f}",
            f"{judgement.refused['bftrainer']} ({judgement.refused['without']})",
            f"{judgement.decide_ms:.1f} ms",
            f"{sum(judgement.cpu_s.values()):.0f} s",
        )
        rows.append(row)
    console().print(new_table(f"The machine beside {name}", HEADINGS, rows))
    print_causes(judged)


def print_causes(judged: Sequence[Judged]) -> None:
    """Print of what the oracle could hold before the reserve, why it was not held."""
    causes_s: Counter[str] = Counter()
    for judgement in judged:
        causes_s.update(judgement.harvest.causes_s)
    causes = [cause for cause, _ in (+causes_s).most_common()]
    rows = []
    for judgement in judged:
        idle_s = sum(judgement.harvest.causes_s.values()) or 1.0
        shares = (100.0 * judgement.harvest.causes_s.get(cause, 0.0) / idle_s for cause in causes)
        rows.append((judgement.cell.name, *(f"{share:.1f}" for share in shares)))
    console().print(new_table("Of what could be held, by cause, %", ("cell", *causes), rows))


def as_values(judgement: Judged) -> dict[str, Any]:
    """Return all that is known of a cell."""
    values = dataclasses.asdict(judgement)
    values["cell"].pop("log")
    return {
        "name": judgement.cell.name,
        **values,
        "of_oracle": judgement.of_oracle,
        "submissions_per_node_h": judgement.submissions_per_node_h,
        "pilots_per_first_step": judgement.pilots_per_first_step,
        "decide_ms": judgement.decide_ms,
    }
