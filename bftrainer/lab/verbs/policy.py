"""``bftrainer policy test`` and ``train``: what policies would have done, and one that learns.

``test`` replays the daemon's journal, or a trace, by the simulator with two policies.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import read_journal
from bftrainer.cli.daemon import default_state_dir
from bftrainer.cli.options import EXISTING_FILE, FILE, JSON, PATH, argument, option, verb
from bftrainer.cli.output import duration, print_json, print_lines, print_table
from bftrainer.ground.regular_file import read_file
from bftrainer.lab.parallel import one_thread
from bftrainer.lab.verbs.trace import READING, LateProgress, load, workload_of
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.quantities import quantity

if TYPE_CHECKING:
    from bftrainer.batch.traces.fragments import Fragments
    from bftrainer.decide.policies.dl2_network import Network
    from bftrainer.lab.workloads import TrainerWorkload
    from bftrainer.lab.yesterday import Figures

# Rows of "policy test": what it is called, its name in ``Figures``, its format ("": by magnitude).
_FIGURES = (
    ("node-hours idle or ours", "offered_node_h", ",.1f"),
    ("node-hours trained", "harvested_node_h", ",.1f"),
    ("node-hours held", "held_node_h", ",.1f"),
    ("work done, reference node-hours", "reference_node_h", ",.1f"),
    ("samples", "samples", ""),
    ("U, of the trainers that ran", "utilization", ".3f"),
    ("rescales", "rescales", ",d"),
    ("nodes taken from trainers", "nodes_taken", ",d"),
    ("trainers finished", "finished", ",d"),
)


@verb(
    argument("old", PATH),
    argument("new", PATH),
    option("--journal", "Of a daemon, which may be running.  [default: in its state directory]",
           FILE, name="journal_file"),
    option("--trace FILE", "Replay this instead, in any format of 'bftrainer trace'.", PATH,
           name="trace_file"),
    option("--workload NAME|FILE", "Trainers for the trace: a name or a JSON file "
           "(docs/reference/traces.md).", default="hpo-shufflenet"),
    option("--hours", "How much: the journal's last, or the trace's first.",
           click.FloatRange(min=0, min_open=True), 24.0),
    *READING, JSON, name="test",
    example="bftrainer policy test old.yaml new.yaml --hours 48",
)  # fmt: skip
def test_policies(
    old: Path,
    new: Path,
    journal_file: Path | None,
    trace_file: Path | None,
    workload: str,
    hours: float,
    *,
    as_json: bool,
    **reading: Any,
) -> None:
    """Say what the policy NEW would have done instead of OLD, by the simulator."""
    from bftrainer.lab.simulator.metrics import WHICH_FIGURE  # noqa: PLC0415 - numpy
    from bftrainer.lab.yesterday import UNKNOWN, figures  # noqa: PLC0415
    from bftrainer.site.policy import load_policy_file  # noqa: PLC0415 - pydantic is slow

    if journal_file and trace_file:
        raise click.UsageError("Give --journal or --trace, not both.")
    policies = [load_policy_file(path).policy for path in (old, new)]
    if trace_file:
        whole = load(trace_file, **reading)
        trace = whole.restrict(hours=min(hours, whole.duration_s / 3600.0))
        trainers = workload_of(workload)
    else:
        trace, trainers = _of_journal(journal_file or default_state_dir() / "journal.db", hours)
    with LateProgress("replaying") as progress:
        results = []
        for n_replayed, policy in enumerate(policies):
            progress.report(n_replayed / len(policies))
            results.append(figures(trace, trainers, policy))
    old_figures, new_figures = results
    if as_json:
        print_json(
            {
                "schema": "bftrainer/policy-test/1",
                "hours": trace.duration_s / 3600.0,
                "trainers": len(trainers),
                "old": {"file": str(old), **asdict(old_figures)},
                "new": {"file": str(new), **asdict(new_figures)},
                "not_known": list(UNKNOWN),
            }
        )
        return
    print_lines(f"{trace.duration_s / 3600.0:.1f} h, {len(trainers)} trainers, replayed twice")
    print_table(("", ">OLD", ">NEW"), _rows(old_figures, new_figures))
    print_lines(WHICH_FIGURE)
    for sentence in UNKNOWN:
        print_lines(f"note: {sentence}")


def _of_journal(file: Path, hours: float) -> tuple[Fragments, TrainerWorkload]:
    from bftrainer.lab.yesterday import past_of  # noqa: PLC0415 - numpy

    if not file.is_file():
        raise click.UsageError(f"There is no journal {file}; give --journal or --trace.")
    with read_journal(file) as opened:
        past = past_of(opened, hours)
    if past.unread:
        print_lines(f"{past.unread} decisions of another release are left out", err=True)
    return past.trace, past.workload


def _shown(value: float, form: str) -> str:
    if form:
        return format(value, form)
    return quantity(value, 4)


def _rows(old: Figures, new: Figures) -> list[tuple[str, str, str]]:
    rows = []
    for label, name, form in _FIGURES:
        rows.append((label, _shown(getattr(old, name), form), _shown(getattr(new, name), form)))
    rows.append(("makespan, if all ended", duration(old.makespan_s), duration(new.makespan_s)))
    for before, after in zip(old.waits, new.waits, strict=True):
        wait = f"wait of {shown(before.user)}" if before.user else "wait"
        rows.append((f"{wait}, mean", duration(before.mean_s), duration(after.mean_s)))
        rows.append((f"{wait}, longest", duration(before.longest_s), duration(after.longest_s)))
        rows.append((f"{wait}, never started", f"{before.never:,d}", f"{after.never:,d}"))
    return rows


@verb(
    argument("name", click.Choice(["dl2"]), metavar="dl2"),
    option("--out FILE.npz", "Where the network goes if it is better.", FILE, required=True),
    option("--from JOURNAL", "Learn from the decisions in journal.db of a daemon, and on its pool; "
           "else on drawn pools.", EXISTING_FILE, name="journal"),
    option("--teacher POLICY", "Whose decisions are imitated first, without --from.",
           default="utility-exact"),
    option("--predecessor FILE.npz", "The network in use; else the one shipped.", EXISTING_FILE),
    option("--iterations", "Episodes that it then plays, four times each.",
           click.IntRange(0, 10_000), 30),
    option("--seed", "The same seed gives the same network.", click.IntRange(0), 1),
    JSON, name="train",
    example="bftrainer policy train dl2 --from journal.db --out network.npz",
)  # fmt: skip
def train_network(
    name: str,
    out: Path,
    journal: Path | None,
    teacher: str,
    predecessor: Path | None,
    iterations: int,
    seed: int,
    *,
    as_json: bool,
) -> None:
    """Train the network of the policy dl2, and keep it if it is better.

    It must beat its teacher and its predecessor on pools that it has not learnt from (exit code 8
    otherwise; nothing is written). Use it with 'policy_options: {model: FILE.npz}'.
    """
    with one_thread():
        import numpy  # noqa: F401, ICN001, PLC0415 - it reads the variable when it is loaded

    from bftrainer.decide.policies.dl2 import POLICY  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.decide.policies.dl2_network import to_bytes  # noqa: PLC0415
    from bftrainer.lab.teach.course import drawn, of_journal, policy_of, teach  # noqa: PLC0415

    source = of_journal(journal, seed) if journal else drawn(teacher, seed)
    before = POLICY
    if predecessor is not None:
        before = policy_of(_network(predecessor))
    rivals = {source.teacher.name: source.teacher, "its predecessor": before}
    with LateProgress(f"training {name}") as progress:
        report = progress.report
        pools = source.labels, source.episodes, rivals
        taught = teach(*pools, seed=seed, iterations=iterations, on_progress=report)
    shown = ", ".join(f"{ratio:.3f} of {rival}" for rival, ratio in taught.against.items())
    if not taught.is_better:
        raise BftError(
            "BFT-4181",
            f"The network is not better: mean time of trainers {shown}.",
            "Try more --iterations, another --seed or --teacher; go on with what there is.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    out.write_bytes(to_bytes(taught.network))
    if as_json:
        print_json({"file": str(out), "against": taught.against, "curve": list(taught.curve)})
        return
    print_lines(f"{out}: mean time of trainers {shown}.")


def _network(path: Path) -> Network:
    from bftrainer.decide.policies.dl2_network import MOST_BYTES, ModelError, of_bytes  # noqa: PLC0415

    try:
        return of_bytes(read_file(path, MOST_BYTES, is_typed=True))
    except (OSError, ModelError) as error:
        raise UsageError(
            "BFT-4182",
            f"The file {path} holds no network: {error}.",
            "Name a file that 'bftrainer policy train' wrote.",
        ) from error
