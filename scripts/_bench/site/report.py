"""The figures of a grid as a table, and as values for its JSON file."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from _bench.site.measures import Judged, added_wait
from _bench.targets import console

HEADINGS = ("cell", "seeds", "starts", "lost /1,000", "without", "preempt.", "avoidable",
            "waits, s", "added wait", "held", "asked", "/ first step", "refused", "decide",
            "CPU")  # fmt: skip


def print_cells(name: str, judged: Sequence[Judged]) -> None:
    """Print a row for each cell."""
    table = Table(title=f"The machine beside {name}", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "cell" else "right")
    for one in judged:
        added = added_wait(one.blocks)
        table.add_row(
            one.cell.name,
            str(one.seeds),
            str(one.starts),
            f"{one.lost_per_1000['bftrainer']:.1f}",
            f"{one.lost_per_1000['without']:.1f}",
            f"{one.lost_per_1000['preemptable']:.1f}",
            f"{1000.0 * one.avoidable / max(1, one.starts):.1f}",
            " ".join(f"{one.wait_s[arm]:.0f}" for arm in ("without", "bftrainer", "preemptable")),
            f"{100 * added.mean:+.1f}% ({100 * added.low:+.1f} to {100 * added.high:+.1f})",
            f"{100 * one.of_oracle:.0f}%",
            f"{one.submissions_per_node_h:.1f}",
            f"{one.pilots_per_first_step:.2f}",
            f"{one.refused['bftrainer']} ({one.refused['without']})",
            f"{one.decide_ms:.1f} ms",
            f"{sum(one.cpu_s.values()):.0f} s",
        )
    console().print(table)
    print_causes(judged)


def print_causes(judged: Sequence[Judged]) -> None:
    """Print of what the oracle could hold before the reserve, why it was not held."""
    table = Table(title="Of what could be held, by cause, %", title_justify="left")
    causes = [
        cause
        for cause, _ in sum((Counter(o.harvest.causes_s) for o in judged), Counter()).most_common()
    ]
    for heading in ("cell", *causes):
        table.add_column(heading, justify="left" if heading == "cell" else "right")
    for one in judged:
        of = sum(one.harvest.causes_s.values()) or 1.0
        shares = (100.0 * one.harvest.causes_s.get(cause, 0.0) / of for cause in causes)
        table.add_row(one.cell.name, *(f"{share:.1f}" for share in shares))
    console().print(table)


def as_values(one: Judged) -> dict[str, Any]:
    """Return all that is known of a cell."""
    values = dataclasses.asdict(one)
    values["cell"].pop("log")
    return {
        "name": one.cell.name,
        **values,
        "of_oracle": one.of_oracle,
        "submissions_per_node_h": one.submissions_per_node_h,
        "pilots_per_first_step": one.pilots_per_first_step,
        "decide_ms": one.decide_ms,
    }
