"""Parts of a site's Slurm that a simulation of it leaves out, as far as they occur. Pure.

Settings, nodes and partitions of ``described_site`` come in, sentences go out, in a fixed order.
Source: slurm.conf(5), 22.05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_plugins.fields import NOTHING, exclusive_of
from slurm_plugins.parse import scheduler_parameters

Record = Mapping[str, str]
MODELLED = frozenset({
    *("bf_interval", "bf_window", "bf_resolution", "bf_max_job_test", "bf_max_job_array_resv"),
    *("default_queue_depth", "batch_sched_delay", "sched_min_interval", "sched_interval"),
})  # fmt: skip
WITHOUT_EFFECT = frozenset({"bf_continue"})  # the simulated cycle goes on as it does with it
PREEMPTION = "Preemption among ordinary jobs, and PreemptExemptTime: only pilots are preempted."
_NO = frozenset({"NO", "OFF", "NONE", "0", "UNLIMITED", "INFINITE"})


def omissions(
    settings: Record, nodes: Sequence[Record], partitions: Sequence[Record]
) -> tuple[str, ...]:
    """Return a sentence for each part that occurs.

    Args:
        settings: of slurm.conf, names in small letters.
        nodes: its lines of nodes.
        partitions: its lines of partitions.
    """
    parameters = scheduler_parameters(
        {"SchedulerParameters": settings.get("schedulerparameters", "")}
    )
    unmodelled = sorted(parameters.keys() - MODELLED - WITHOUT_EFFECT)
    sentences = [text for applies, text in _OF_SETTINGS if applies(settings)]
    sentences += [text for applies, text in _OF_PARTITIONS if any(map(applies, partitions))]
    sentences += [text for applies, text in _OF_NODES if applies(nodes)]
    if _preempt_each_other(settings, partitions):
        sentences.append(PREEMPTION)
    if unmodelled:
        names = ", ".join(unmodelled)
        sentences.append(f"SchedulerParameters has {names}, which have no effect here.")
    return tuple(sentences)


def _preempt_each_other(settings: Record, partitions: Iterable[Record]) -> bool:
    """Return whether jobs of more than one partition, that of pilots, are preempted."""
    if not _has(settings, "preempttype") or settings["preempttype"] == "preempt/none":
        return False
    usual = settings.get("preemptmode", "OFF")
    return sum(record.get("preemptmode", usual).upper() not in _NO for record in partitions) > 1


def _has(record: Record, name: str) -> bool:
    value = record.get(name, "")
    return value not in NOTHING and value.upper() not in _NO


def _enforces(record: Record, word: str) -> bool:
    return word in record.get("accountingstorageenforce", "").lower().split(",")


def _any(records: Iterable[Record], *names: str) -> bool:
    return any(_has(record, name) for record in records for name in names)


_OF_SETTINGS: tuple[tuple[Callable[[Record], bool], str], ...] = (
    (
        lambda r: r.get("prioritytype", "priority/basic") != "priority/basic",
        "Fair share and age over time: each job keeps the one priority that sacct shows.",
    ),
    (
        lambda r: any(_enforces(r, word) for word in ("limits", "qos", "safe")),
        "Limits of QOS and associations: a job that they held starts as soon as it fits.",
    ),
    (
        lambda r: r.get("topologyplugin", "topology/none") not in ("topology/none", "", "(null)",
                                                                   "topology/default"),
        "The network's topology: jobs get neighbouring nodes in the order of the files.",
    ),
    (lambda r: _has(r, "licenses"), "Licences: there are always enough."),
    (
        lambda r: r.get("schedulertype", "sched/backfill") != "sched/backfill",
        "SchedulerType: backfill is simulated, whatever it says.",
    ),
    (
        lambda r: _has(r, "burstbuffertype"),
        "Burst buffers: no job waits for one.",
    ),
    (
        lambda r: _has(r, "suspendprogram"),
        "Nodes that are switched off to save power: all are on.",
    ),
)  # fmt: skip
_OF_PARTITIONS: tuple[tuple[Callable[[Record], bool], str], ...] = (
    (
        lambda r: _has(r, "qos"),
        "QOS of partitions: their limits hold nobody back.",
    ),
    (
        lambda r: exclusive_of(r) == "USER",
        "ExclusiveUser: jobs of several users may share a node.",
    ),
    (
        lambda r: _has(r, "maxnodes") or r.get("minnodes", "1") not in ("0", "1"),
        "MinNodes and MaxNodes of partitions: the log's jobs have kept to them already.",
    ),
    (
        lambda r: r.get("oversubscribe", "NO").upper().startswith(("YES", "FORCE")),
        "OverSubscribe=YES or FORCE: no CPU has two jobs.",
    ),
)
_OF_NODES: tuple[tuple[Callable[[Sequence[Record]], bool], str], ...] = (
    (
        lambda nodes: _any(nodes, "feature", "features", "availablefeatures"),
        "Features: a job with a constraint may run on any node of its partition.",
    ),
)
