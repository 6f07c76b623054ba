"""What ``whatif --harm`` says of GPUs lent one by one: the proposal, and how they are lent. Pure.

The proposal has the words of ``bftrainer doctor`` (BFT-2120), with its gain in GPU-hours a day and
the waits of jobs beside those with whole nodes, on the same blocks of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bftrainer.batch import lending_findings
from bftrainer.lab.harm.findings import LendArm, LendProposal
from bftrainer.lab.harm.replica import Replica
from bftrainer.lab.harm.sentences import interval, noticed, seconds, share
from bftrainer.lab.report_page import Section
from bftrainer.model.columns import TextTable, counted
from bftrainer.model.parts import Lend
from bftrainer.model.quantities import quantity

AUTO = lending_findings.PROPOSED
NOT_PLAYED = (
    f"With '{AUTO}' in the policy they are lent one by one; 'bftrainer whatif --harm --lend auto' "
    "says how many GPU-hours that is."
)
NO_GAIN = "so there is nothing to gain"
LENT_HEADERS = (
    *("NODES OF", ">NODES", ">IDLE GPU-H", ">LENT WHOLE", ">LENT BY AUTO", ">TRAINED WHOLE"),
    ">TRAINED BY AUTO",
)
HARM_HEADERS = (
    *("PARTITION", "NODES OF", ">ADDED, WHOLE", ">95% OF IT", ">ADDED, AUTO", ">95% OF IT"),
    *(">BY CHANCE, 95%", "BEYOND CHANCE"),
)


def proposal_sentences(replica: Replica, proposal: LendProposal | None) -> Iterator[str]:
    """Yield that GPUs could be lent one by one, with the gain and the waits; for whole nodes.

    Args:
        replica: the site.
        proposal: what was played; None: nothing was.
    """
    shared = replica.shared_lending
    if not shared:
        return
    yield f"{lending_findings.hidden_sentence(shared)} ({lending_findings.HIDDEN})"
    if proposal is None:
        yield NOT_PLAYED
        return
    now, then = proposal.now, proposal.proposed
    lent = (
        f"With '{AUTO}' in the policy bftrainer would lend {quantity(then.held_gpu_hours)} "
        f"GPU-hours a day instead of {quantity(now.held_gpu_hours)} "
        f"({share(then.held_gpu_hours, then.idle_gpu_hours)} of the idle GPU time instead of "
        f"{share(now.held_gpu_hours, now.idle_gpu_hours)})"
    )
    if proposal.gained_gpu_hours <= 0.0:
        yield f"{lent}, {NO_GAIN}."
        return
    yield f"{lent}: {quantity(proposal.gained_gpu_hours)} more."
    for harm in then.partitions:
        yield noticed(harm, f"With '{AUTO}' jobs")


def proposal_sections(proposal: LendProposal | None) -> Iterator[Section]:
    """Yield the figures of whole nodes and of single GPUs beside each other."""
    if proposal is None:
        return
    now, then = proposal.now, proposal.proposed
    how = (
        f"Both are played for the same {proposal.hours:.1f} h, in "
        f"{counted(proposal.blocks, 'block')}. Hours are a day, added waits seconds per job. "
        f"A day has {then.pilots_per_day:,.0f} pilots with single GPUs, of which "
        f"{then.preempted_per_day:,.0f} are preempted by jobs, and {now.pilots_per_day:,.0f} "
        f"with whole nodes, of which {now.preempted_per_day:,.0f} are."
    )
    yield Section(
        title=f"GPUs one by one: {AUTO} ({lending_findings.HIDDEN})",
        text=(how,),
        tables=(_lent_table(now, then), _harm_table(now, then)),
        items=(f"To lend GPUs: {AUTO} in the policy; {lending_findings.RELOAD}.",),
    )


def _lent_table(now: LendArm, then: LendArm) -> TextTable:
    rows = [
        (
            after.node_type,
            f"{after.nodes:,}",
            quantity(after.idle_gpu_hours),
            quantity(before.held_gpu_hours),
            quantity(after.held_gpu_hours),
            quantity(before.trained_gpu_hours),
            quantity(after.trained_gpu_hours),
        )
        for before, after in zip(now.node_types, then.node_types, strict=True)
        if after.idle_gpu_hours
    ]
    return TextTable(headers=LENT_HEADERS, rows=tuple(rows))


def _harm_table(now: LendArm, then: LendArm) -> TextTable:
    before = {harm.partition: harm.added for harm in (*now.partitions, now.everybody)}
    rows = [
        (
            harm.partition or "all",
            ", ".join(harm.node_types),
            seconds(before[harm.partition].mean_s),
            interval(before[harm.partition]),
            seconds(harm.added.mean_s),
            interval(harm.added),
            interval(harm.by_chance),
            "yes" if harm.is_beyond_chance else "no",
        )
        for harm in (*then.partitions, then.everybody)
        if harm.partition in before
    ]
    return TextTable(headers=HARM_HEADERS, rows=tuple(rows))


def lending_assumptions(replica: Replica, lend: Lend) -> Iterator[str]:
    """Yield how GPUs are lent one by one, and which are not, a sentence each."""
    if lend is Lend.NODES:
        return
    nodes = replica.shared_lending
    if lend is Lend.GPUS:
        nodes = tuple(node for node in replica.lending if node.lends)
    ways = Counter((node.node_type, node.lends) for node in nodes)
    for (node_type, lends), count in ways.items():
        gpus, *_ = lends
        memory = ""
        if gpus.memory_mb:
            memory = f" and {gpus.memory_mb:,} MB"
        yield (
            f"{counted(count, 'node')} of {node_type}: each GPU is lent with "
            f"{counted(gpus.cpus, 'CPU')}{memory}, with fewer CPUs where jobs leave fewer."
        )
    for finding in lending_findings.findings(replica.lending, lend):
        yield f"{finding.cost} ({finding.code})"
    if not nodes:
        yield f"No node lends GPUs one by one, so 'lend: {lend}' lends whole nodes."
