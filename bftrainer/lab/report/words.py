"""Name, unit and number format of each figure of merit, for tables and pages.

The formulas are in docs/design/simulator.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bftrainer.lab.simulator.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Name and unit of a figure of merit; ``form`` is the format of its number."""

    label: str
    unit: str = ""
    form: str = ",.0f"
    meaning: str = ""


SHARE, MEAN, COUNT = ".2%", ",.2f", ",.0f"

WORDS: Mapping[str, Word] = {
    "utilization": Word(label="utilization U", form=".4f", meaning="A_e / A_s (section 4.1)"),
    "n_eq": Word(label="N_eq", unit="nodes", form=MEAN, meaning="mean size of the pool (eq. 18)"),
    "a_e": Word(label="A_e", unit="samples", form=".4g", meaning="processed on the fragments"),
    "a_s": Word(
        label="A_s",
        unit="samples",
        form=".4g",
        meaning="what N_eq nodes that are always there would process",
    ),
    "resource_integral_node_h": Word(
        label="resource integral", unit="node-hours", form=",.1f", meaning="eq. 17"
    ),
    "node_share_training": Word(
        label="of it training", form=SHARE, meaning="node-time in which a worker trained"
    ),
    "node_share_held": Word(
        label="of it held", form=SHARE, meaning="node-time with a pilot (physical costs)"
    ),
    "cost_preemption": Word(
        label="lost to preemptions", form=SHARE, meaning="share of A_s: nodes taken back"
    ),
    "cost_rescale": Word(
        label="lost to rescales", form=SHARE, meaning="share of A_s: sizes changed by decision"
    ),
    "cost_unused": Word(label="unused", form=SHARE, meaning="share of A_s: the rest of 1 - U"),
    "events": Word(label="events", meaning="instants at which the pool changes"),
    "decisions": Word(label="decisions"),
    "rescales": Word(label="rescales", meaning="changes of size by decision, starts included"),
    "preemptions": Word(label="preemptions", meaning="trainer and event, whatever it lost"),
    "pilots_per_first_step": Word(
        label="pilots per first step",
        form=MEAN,
        meaning="requested, by those whose node made a first step (physical costs)",
    ),
    "submitted": Word(label="trainers submitted"),
    "completed": Word(label="trainers completed"),
    "runtime_mean_s": Word(
        label="runtime, mean", unit="s", meaning="first start to end, of the completed"
    ),
    "runtime_median_s": Word(label="runtime, median", unit="s"),
    "queue_time_mean_s": Word(
        label="queue time, mean", unit="s", meaning="submission to first start, of the started"
    ),
    "queue_time_max_s": Word(label="queue time, longest", unit="s"),
    "jct_mean_s": Word(
        label="completion time, mean", unit="s", meaning="submission to end, of the completed"
    ),
    "jct_median_s": Word(label="completion time, median", unit="s"),
    "jct_p90_s": Word(label="completion time, p90", unit="s"),
    "jain_index": Word(
        label="Jain's index", form=".3f", meaning="of mean rates, each by that on one node"
    ),
    "slowdown_mean": Word(
        label="slowdown, mean", form=MEAN, meaning="runtime by that at the equal static share"
    ),
    "slowdown_max": Word(label="slowdown, largest", form=MEAN),
    "decision_ms_mean": Word(
        label="decision, mean", unit="ms", form=".3f", meaning="by the wall clock"
    ),
    "decision_ms_p50": Word(label="decision, p50", unit="ms", form=".3f"),
    "decision_ms_p99": Word(label="decision, p99", unit="ms", form=".3f"),
    "decision_ms_max": Word(label="decision, longest", unit="ms", form=".3f"),
}


def label_of(name: str) -> str:
    """Return a figure's name with its unit."""
    word = WORDS[name]
    return f"{word.label} ({word.unit})" if word.unit else word.label


def shown_value(metrics: Metrics, name: str) -> str:
    """Return a figure's number for readers; a dash if there is none."""
    value = getattr(metrics, name)
    return "-" if value is None else format(value, WORDS[name].form)
