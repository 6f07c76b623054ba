"""What is said of an option of sbatch that a verb does not take, or takes and ignores.

The options and the reasons stand in ``sbatch_options``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

import click

from bftrainer.cli.options import option
from bftrainer.cli.sbatch_options import BY_SHORT, OPTIONS, SbatchOption
from bftrainer.model.columns import shown

# Of other batch systems, or shortened: what people type, and the option that they mean.
_MEANT: Final = {
    "--cpus": "cpus-per-task",
    "--ncpus": "cpus-per-task",
    "--memory": "mem",
    "--cluster": "clusters",
}
_AT_ONCE: Final = "This verb trains at once while you watch."
_OMIT: Final = "Omit it; 'bftrainer submit' takes {}."
# Parameter of ``submit`` that is taken and ignored -> why.
IGNORED: Final = {
    "partition": "the daemon chooses the nodes, in the partition that its administrator set "
    "('bftrainer up --partition NAME' for your own daemon)",
    "qos": "the daemon's pilots have the QOS that its administrator set "
    "('bftrainer up --qos NAME' for your own daemon)",
}
IGNORED_OPTIONS: Final = (
    option("-p, --partition NAME", "Taken and ignored: the daemon chooses the nodes."),
    option("-q, --qos NAME", "Taken and ignored: it is of the daemon's pilots."),
)


def ignored(values: dict[str, object]) -> list[str]:
    """Return a sentence for each option among the chosen ones that is ignored."""
    return [
        f"note: --{name} {values[name]} is ignored: {why}."
        for name, why in IGNORED.items()
        if values.get(name) is not None
    ]


def notes_on_partition(partitions: str | None, batch_pairs: Iterable[str]) -> list[str]:
    """Return a note where a daemon lends no node of the partitions that the user named.

    Args:
        partitions: as typed, with commas between them; None: none.
        batch_pairs: options of the daemon's batch system, KEY=VALUE. A site's daemon has its
            partition in the policy instead, which users may not see: nothing is noted then.
    """
    served = ""
    for pair in batch_pairs:
        key, _, value = pair.partition("=")
        if key == "pilot_partition":
            served = value
    if not partitions or not served or set(partitions.split(",")) & set(served.split(",")):
        return []
    note = f"note: this daemon lends nodes of partition {shown(served)}, and none of"
    return [f"{note} {shown(partitions)}. 'bftrainer up --partition NAME' chooses it."]


def option_of(name: str) -> SbatchOption | None:
    """Return the option of sbatch with this name, "-t" or "--time"; None: it has none."""
    if not name.startswith("--"):
        return BY_SHORT.get(name.removeprefix("-"))
    return OPTIONS.get(_MEANT.get(name, name.removeprefix("--")))


def refusal_of(problem: click.UsageError, taken_by_submit: Container[str] = ()) -> tuple[str, str]:
    """Return why an option that click does not know has no meaning, and what to do; "": unknown.

    Args:
        problem: of a verb.
        taken_by_submit: options of ``submit``, where the verb is another.
    """
    if not isinstance(problem, click.NoSuchOption):
        return "", ""
    sbatch_option = option_of(problem.option_name)
    if sbatch_option is None:
        return "", ""
    why, step = sbatch_option.reason, sbatch_option.instead
    if problem.option_name in taken_by_submit:
        why, step = _AT_ONCE, _OMIT.format(problem.option_name)
    return f"Option {problem.option_name} of sbatch has no meaning here. {why}", step
