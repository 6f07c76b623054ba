"""``bftrainer status``, ``nodes``, ``explain`` and ``metrics``: the daemon's views.

Each prints a table or JSON.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import click

from bftrainer.api.documents import listing
from bftrainer.cli.array_table import HEADERS, ArrayRow, cells_of, rows_of
from bftrainer.cli.common import connect
from bftrainer.cli.options import JSON, SOCKET, named_trainer, option, trainer_ids, verb
from bftrainer.cli.output import (
    answer,
    clock,
    duration,
    is_terminal,
    print_as_it_is,
    print_json,
    print_lines,
    print_pairs,
    print_table,
)
from bftrainer.daemon.explain.lives import kept, restart_sentences
from bftrainer.ground.output_place import output_path
from bftrainer.model.columns import columns, counted, heading, shown
from bftrainer.model.decision import Term
from bftrainer.model.errors import UsageError
from bftrainer.model.gpu_shares import GpuCount
from bftrainer.model.quantities import quantity
from bftrainer.model.size_words import limit_words, short_limits, short_size, size_words, units
from bftrainer.model.time_limits import limit_text
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import Explanation, NodeView, SizeSpeed, StatusView, TrainerView

ENDED_SHOWN = 10  # ended trainers that the table still shows
# Lines about one trainer that are left out where they would be empty.
_LEFT_OUT = (
    *("asks for", "comment", "output", "time limit", "progress", "checkpoint", "GPUs"),
    *("training loss", "metric", "kept", "trial", "trouble", "after", "begin"),
)
_ENDED = frozenset(state.value for state in TrainerState if state.is_final)
_IN_FULL = "'bftrainer status ID' shows all"
_NO_TRAINERS = "no trainers; submit one with 'bftrainer submit'"
_NODE_HEADERS = ("NODE", "TYPE", ">GPUS", "STATE", "USE", "TRAINER", "PILOT", ">USABLE", "REASON")


class TrainerColumn(NamedTuple):
    """A column of the table of trainers."""

    header: str  # > aligns right
    text: Callable[[TrainerView, float], str]  # of a view, at a time (s)


COLUMNS: dict[str, TrainerColumn] = {
    "id": TrainerColumn("ID", lambda view, _: view.record.trainer_id),
    "name": TrainerColumn("NAME", lambda view, _: view.record.spec.name),
    "user": TrainerColumn("USER", lambda view, _: view.record.spec.user),
    "state": TrainerColumn("STATE", lambda view, _: view.state),
    "nodes": TrainerColumn(">NODES", lambda view, _: _short(view, view.observed_nodes)),
    "plan": TrainerColumn(">PLAN", lambda view, _: _short(view, view.planned_nodes)),
    "limits": TrainerColumn("LIMITS", lambda view, _: short_limits(view.record.spec)),
    "epoch": TrainerColumn(">EPOCH", lambda view, _: str(view.record.progress.epoch)),
    "step": TrainerColumn(">STEP", lambda view, _: str(view.step)),
    "samples": TrainerColumn(">SAMPLES", lambda view, _: str(view.record.progress.samples)),
    "rate": TrainerColumn(">SAMPLES/S", lambda view, _: _rate(view.record)),
    "done": TrainerColumn(">DONE", lambda view, _: _percent(view.done)),
    "left": TrainerColumn(">LEFT", lambda view, _: duration(view.left_s)),
    "metric": TrainerColumn(">METRIC", lambda view, _: metric(view.record)),
    "rescales": TrainerColumn(">RESCALES", lambda view, _: str(view.record.rescales)),
    "failures": TrainerColumn(">FAILURES", lambda view, _: str(view.record.failures)),
    "weight": TrainerColumn(">WEIGHT", lambda view, _: f"{view.record.spec.weight:g}"),
    "age": TrainerColumn(
        ">AGE",
        lambda view, at_s: duration((view.record.ended_s or at_s) - view.record.submitted_s),
    ),
    "submitted": TrainerColumn("SUBMITTED", lambda view, _: clock(view.record.submitted_s)),
    "started": TrainerColumn("STARTED", lambda view, _: clock(view.record.started_s)),
    "ended": TrainerColumn("ENDED", lambda view, _: clock(view.record.ended_s)),
    "nodelist": TrainerColumn("NODELIST", lambda view, _: ",".join(view.observed_nodes) or "-"),
    "checkpoints": TrainerColumn("CHECKPOINTS", lambda view, _: view.record.spec.checkpoint_dir),
    "reason": TrainerColumn("REASON", lambda view, _: view.why),
}
MEANINGS = {
    "id": "what other commands take",
    "name": "of --job-name, else of the script; commands take it, too",
    "user": "who submitted it",
    "state": "queued: has not run; running; parked: without nodes now; or how it ended",
    "nodes": "on which it trains, or GPUs where it asked for GPUs",
    "plan": "nodes or GPUs that the last decision gave it",
    "limits": "sizes of --nodes or --gpus that it may have",
    "epoch": "that it is in",
    "step": "updates made; of a parked one those in its checkpoint",
    "samples": "trained since its first start",
    "rate": "samples per second",
    "done": "share of --epochs, --samples or --steps that is done",
    "left": "time that the rest takes at its planned size",
    "metric": "that its script reported last",
    "rescales": "changes of its nodes while it trained",
    "failures": "of its workers",
    "weight": "its priority where the policy weighs trainers",
    "age": "since it was submitted; of an ended one until its end",
    "submitted": "when",
    "started": "when it first trained",
    "ended": "when",
    "nodelist": "names of its nodes",
    "checkpoints": "the directory of its checkpoints",
    "reason": "why it waits, goes slow, or has ended",
}
USUAL = (
    "id", "name", "user", "state", "nodes", "plan", "limits",
    "epoch", "step", "rate", "metric", "left", "age", "reason",
)  # fmt: skip
# What a narrow terminal leaves out, the first of them first.
SPARED = ("limits", "plan", "step", "user", "done", "age", "epoch", "metric", "rate", "left")


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the names in ``id,state``.

    Raises:
        UsageError: BFT-1048, there is no such column.
    """
    names = tuple(part.strip().lower() for part in text.split(","))
    if wrong := [name for name in names if name not in (*COLUMNS, "help")]:
        raise UsageError(
            "BFT-1048",
            f"There is no column {wrong[0][:40]!r}.",
            f"Choose from: {', '.join(COLUMNS)}.",
        )
    return names


def headers_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the headers of columns."""
    return tuple(COLUMNS[name].header for name in names)


def row_of(view: TrainerView, now_s: float, names: Sequence[str] = USUAL) -> tuple[str, ...]:
    """Return a trainer's cells."""
    return tuple(COLUMNS[name].text(view, now_s) for name in names)


def print_trainers(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of trainers; a narrow terminal gets fewer of these columns."""
    spared = list(map(heading, headers_of(SPARED)))
    print_table(headers_of(names), rows, optional=spared, elsewhere=_IN_FULL)


def metric(record: TrainerRecord) -> str:
    """Return what its script reported last (``run.report``)."""
    return quantity(record.reports[-1].value, 4) if record.reports else "-"


def training_loss(record: TrainerRecord) -> str:
    """Return the mean loss of late; "": none was told."""
    progress = record.progress
    if not progress.has_finite_loss:
        return "not finite (NaN or infinite)"
    if progress.loss is None:
        return ""
    return quantity(progress.loss, 6)


def _rate(record: TrainerRecord) -> str:
    rate = record.progress.samples_per_s
    return quantity(rate, 4) if rate else "-"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100.0 * part:.1f}%"


@verb(
    trainer_ids(is_required=False),
    option("--all", "Show every trainer that has ended, too.", name="show_all"),
    option("--watch SECONDS", "Show it again every SECONDS until interrupted.",
           click.FloatRange(min=0.1, max=86400), name="watch_s"),
    option("--array ID", "Show the trainers of the array that ID is of: arguments, state, last "
           "metric, step of the checkpoint.", name="array_of", callback=named_trainer),
    option("-o COLUMN[,COLUMN...]", "Print these columns only, of all trainers or of ID; 'help' "
           "lists them.", parse_columns, name="names"),
    JSON, SOCKET,
    example="bftrainer status t1",
)  # fmt: skip
def status(
    trainer_id: str | None,
    watch_s: float | None,
    array_of: str | None,
    names: tuple[str, ...] | None,
    socket_name: str | None,
    *,
    show_all: bool,
    as_json: bool,
) -> None:
    """Show the daemon and its trainers, or the trainer ID in full."""
    if names and "help" in names:
        print_pairs([(name, MEANINGS.get(name, "")) for name in COLUMNS], 11)
        return
    if array_of and (trainer_id or names):
        raise click.UsageError("--array excludes ID and -o.")
    client = connect(socket_name)
    while True:
        if array_of:
            _print_array(rows_of(array_of, client.trainers()), as_json=as_json)
        elif trainer_id is None and names and not as_json:
            _print_columns(recent(client.trainers(), show_all=show_all), names)
        elif trainer_id is None:
            show = partial(_print_status, show_all=show_all)
            answer(client.status(), "status", show, as_json=as_json, is_compact=bool(watch_s))
        else:
            view = client.trainer(trainer_id)
            if names and not as_json:
                _print_columns((view,), names)
            else:
                answer(view, "trainer", _print_trainer, as_json=as_json, is_compact=bool(watch_s))
        if watch_s is None:
            return
        time.sleep(watch_s)
        if is_terminal() and not as_json:
            click.clear()


def _print_array(rows: Sequence[ArrayRow], *, as_json: bool) -> None:
    if as_json:
        print_json(listing("array", rows))
    else:
        print_table(HEADERS, list(map(cells_of, rows)))


def _print_columns(views: Sequence[TrainerView], names: tuple[str, ...]) -> None:
    now_s = time.time()
    print_table(headers_of(names), [row_of(view, now_s, names) for view in views])


def _print_trainer(view: TrainerView) -> None:
    print_pairs(trainer_lines(view), 13)


def _print_status(view: StatusView, *, show_all: bool) -> None:
    now_s = time.time()
    last = "none yet"
    if view.last_decision_s is not None:
        ago = duration(now_s - view.last_decision_s)
        last = f"{ago} ago in {view.last_decision_ms:.1f} ms"
    poll = "complete" if view.observed == "present" else view.observed
    print_lines(
        f"daemon      pid {view.pid}, incarnation {view.incarnation}, "
        f"up {duration(now_s - view.started_s)}, policy {view.policy_hash[:12]}",
        f"system      {shown(f'{view.batch_system}, last poll: {poll}')}",
        f"nodes       {view.nodes_held} held, {view.nodes_requested} requested, "
        f"{view.nodes_idle} idle, {view.nodes_total} in all",
        *lent_gpu_lines(view, 12),
        f"decisions   {view.decisions}, last {last}",
        f"so far      {counted(view.rescales, 'rescale')}, "
        f"{counted(view.give_backs, 'node')} given back, "
        f"{view.preemptions} taken by the batch system",
        indent=12,
    )
    print_pairs(view.notes, 11)
    trainers = recent(view.trainers, show_all=show_all)
    print_lines("")
    if not trainers:
        print_lines(_NO_TRAINERS)
    print_trainers(USUAL, [row_of(trainer, now_s) for trainer in trainers])
    if view.other_trainers:
        print_lines(f"{view.other_trainers} of other users are not shown")
    ids = {trainer.record.trainer_id for trainer in trainers}
    _print_hidden([view.record for view in view.trainers if view.record.trainer_id not in ids])


def _print_hidden(records: Sequence[TrainerRecord]) -> None:
    """Print how many trainers the table leaves out: trials without nodes, by study, and others."""
    trials, n_ended = Counter[str](), 0
    for record in records:
        if not record.spec.trial:
            n_ended += 1
        elif not record.state.is_final:
            trials[record.spec.trial.study] += 1
    for study, count in trials.items():
        have = counted(count, f"trial of {study} has", f"trials of {study} have")
        print_lines(f"{have} no nodes; see 'bftrainer study status'")
    if n_ended:
        print_lines(f"{counted(n_ended, 'more has', 'more have')} ended; see --all")


def lent_gpu_lines(view: StatusView, indent: int) -> list[str]:
    """Return the line about GPUs that are lent one by one; none where nodes are lent as a whole."""
    lent = view.lent_gpus
    if lent is None:
        return []
    counts = f"{lent.held} held, {lent.requested} requested, {lent.free} free, {lent.gpus} in all"
    return [f"{'GPUs':<{indent}}{counts}"]


def recent(views: Sequence[TrainerView], *, show_all: bool) -> tuple[TrainerView, ...]:
    """Return the trainers without trials that have no nodes, and what ended long ago."""
    if show_all:
        return tuple(views)
    recent_views = list[TrainerView]()
    n_ended = 0
    for view in reversed(views):
        if view.record.spec.trial and not view.observed_nodes:
            continue
        n_ended += view.record.state.is_final
        if n_ended <= ENDED_SHOWN or not view.record.state.is_final:
            recent_views.append(view)
    return tuple(reversed(recent_views))


def trainer_lines(view: TrainerView) -> list[tuple[str, str]]:
    """Return everything about one trainer as names and values."""
    record, spec, progress = view.record, view.record.spec, view.record.progress
    size, failures = f"{len(view.observed_nodes)} of {limit_words(spec)}", str(record.failures)
    if spec.workers_per_node != 1:
        size += f", {spec.workers_per_node} workers on each"
    if spec.max_failures:
        failures += f" of {spec.max_failures}"
    requests = (("--gres", spec.gres), ("--constraint", spec.constraint))
    pauses = {"up": record.costs.rescale_up_s, "down": record.costs.rescale_down_s}
    lines = [
        ("id", record.trainer_id),
        ("name", spec.name),
        ("user", spec.user),
        ("state", _state_and_reason(view)),
        ("asks for", " ".join(f"{name} {value}" for name, value in requests if value)),
        ("size", size),
        ("planned", ", ".join(view.planned_nodes) or "none"),
        ("requested", ", ".join(view.requested_nodes) or "none"),
        ("observed", ", ".join(view.observed_nodes) or "none"),
        ("work", _work(spec)),
        (
            "done",
            f"epoch {progress.epoch}, step {progress.step}, {counted(progress.samples, 'sample')}",
        ),
        ("checkpoint", "" if record.saved_step is None else f"step {record.saved_step}"),
        ("rate", f"{quantity(progress.samples_per_s, 4)} samples/s"),
        ("progress", _progress(view)),
        ("GPUs", str(progress.gpu_use or "")),
        ("training loss", training_loss(record)),
        ("metric", _last_report(record)),
        ("kept", kept(record)),
        ("trial", f"{spec.trial.number} of study {spec.trial.study}" if spec.trial else ""),
        ("rescales", f"{record.rescales}, generation {record.last_generation}"),
        ("failures", failures),
        ("trouble", view.trouble),
        ("pause", ", ".join(f"{name} {_pause(value)}" for name, value in pauses.items())),
        *(("restart", sentence) for sentence in restart_sentences(record)),
        *_conditions(record),
        ("submitted", clock(record.submitted_s)),
        ("started", clock(record.started_s)),
        ("ended", clock(record.ended_s)),
        ("script", " ".join((spec.script, *spec.args))),
        ("directory", spec.cwd),
        ("interpreter", spec.interpreter),
        (
            "checkpoints",
            f"{spec.checkpoint_dir} at least every {duration(spec.checkpoint_interval_s)}",
        ),
    ]
    return [(name, value) for name, value in lines if value or name not in _LEFT_OUT]


def _state_and_reason(view: TrainerView) -> str:
    reason = view.waits or view.record.reason
    if view.unheard_nodes:
        reason = view.trouble
    if not reason:
        return view.state
    return f"{view.state}: {reason}"


def _work(spec: TrainerSpec) -> str:
    """Return how much there is to train."""
    if spec.epochs is not None:
        return counted(spec.epochs, "epoch")
    if spec.samples is not None:
        return counted(spec.samples, "sample")
    if spec.steps is not None:
        return counted(spec.steps, "step")
    return "as the script says"


def _progress(view: TrainerView) -> str:
    if view.done is None:
        return ""
    if view.left_s is None:
        return _percent(view.done)
    return f"{_percent(view.done)}, {duration(view.left_s)} left"


def _conditions(record: TrainerRecord) -> list[tuple[str, str]]:
    """Return what its user has said of its begin and end, and the comment."""
    spec = record.spec
    return [
        ("after", ", ".join((*spec.after, *spec.after_any))),
        ("begin", "" if spec.begin_s is None else clock(spec.begin_s)),
        ("time limit", _time_limit(record)),
        ("output", output_path(spec.output or "", record.trainer_id)),
        ("comment", spec.comment),
    ]


def _last_report(record: TrainerRecord) -> str:
    if not record.reports:
        return ""
    report = record.reports[-1]
    return f"{quantity(report.value, 6)} after epoch {report.epoch}"


def _time_limit(record: TrainerRecord) -> str:
    limit_s, ends_s = record.spec.time_limit_s, record.time_ends_s
    if limit_s is None:
        return ""
    if ends_s is None:
        return f"{limit_text(limit_s)} from its first step on"
    return f"{limit_text(limit_s)}, until {clock(ends_s)}"


def _pause(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds:.2f} s"


@verb(JSON, SOCKET, example="bftrainer nodes")
def nodes(socket_name: str | None, *, as_json: bool) -> None:
    """Show every node and what it is used for."""
    views = connect(socket_name).nodes()
    if as_json:
        print_json(listing("nodes", views))
        return
    if not views:
        print_lines("no nodes seen yet")
    now_s = time.time()
    print_table(_NODE_HEADERS, [_node_row(view, now_s) for view in views])
    print_lines(*_lent_as_a_whole(views))


def _lent_as_a_whole(views: Sequence[NodeView]) -> list[str]:
    """Say in a line per reason which nodes' GPUs are not lent one by one."""
    names_of: dict[str, list[str]] = {}
    for view in views:
        if view.why_whole:
            names_of.setdefault(view.why_whole, []).append(view.name)
    lines = list[str]()
    for reason, names in names_of.items():
        line = f"as a whole: {names[0]}"
        if len(names) > 1:
            line += f" and {len(names) - 1} more"
        lines.append(f"{line}. {reason}")
    return lines


def _node_row(view: NodeView, now_s: float) -> tuple[str, ...]:
    usable = "-" if view.usable_until_s is None else duration(view.usable_until_s - now_s)
    users = (view.trainer_id or "-", view.pilot_id or "-")
    use, reason = view.use, view.reason
    if view.gpu_counts:
        use = gpus_in_words(view)
        users = (
            _names(part.trainer_id for part in view.parts),
            _names(part.pilot_id for part in view.parts),
        )
        parts = [f"{part.name}: {part.reason}" for part in view.parts if part.reason]
        reason = " ".join(filter(None, (reason, *parts)))
    return (view.name, view.node_type, str(view.gpus), view.state, use, *users, usable, reason)


def _names(names: Iterable[str]) -> str:
    """Return names once each, in their order."""
    return ",".join(dict.fromkeys(filter(None, names))) or "-"


def gpus_in_words(view: NodeView) -> str:
    """Return what the GPUs of a node are used for: 2 of 4 GPUs: t1 1, t2 1; 1 in use; 1 free."""
    if len(view.gpu_counts) == 1:
        return _type_in_words(view.gpu_counts[0], view)
    return ". ".join(f"{count.gpu_type} {_type_in_words(count, view)}" for count in view.gpu_counts)


def _type_in_words(count: GpuCount, view: NodeView) -> str:
    gpus_by_holder: dict[str, int] = {}
    for part in view.parts:
        if part.gpu_type == count.gpu_type:
            holder = part.trainer_id or "without a trainer"
            gpus_by_holder[holder] = gpus_by_holder.get(holder, 0) + part.gpus
    text = f"{count.held} of {counted(count.gpus, 'GPU')}"
    if gpus_by_holder:
        text += f": {', '.join(f'{holder} {gpus}' for holder, gpus in gpus_by_holder.items())}"
    uses = {"in use": count.in_use, "free": count.free, "without CPUs or memory": count.blocked}
    for use, gpus in uses.items():
        if gpus:
            text += f"; {gpus} {use}"
    return text


@verb(trainer_ids(), JSON, SOCKET, example="bftrainer explain t1")
def explain(trainer_id: str, socket_name: str | None, *, as_json: bool) -> None:
    """Say why the trainer ID has the size it has, or why it does not run."""
    view = connect(socket_name).explain(trainer_id)
    answer(view, "explain", lambda view: print_lines(*explained(view)), as_json=as_json)


def explained(view: Explanation) -> list[str]:
    """Return an explanation in lines, which are not escaped yet."""
    state = "unheard" if view.unheard_nodes else view.state
    head = f"{view.trainer_id} is {state}{_place_of(view)}"
    return [head, *(f"- {sentence}" for sentence in view.sentences), *_numbers(view)]


def _short(view: TrainerView, places: Sequence[str]) -> str:
    """Return how many nodes or GPUs those are, for a column."""
    return short_size(len(places), view.record.spec.gpus_per_unit)


def _place_of(view: Explanation) -> str:
    """Say where a trainer is and is to be, unless it has ended."""
    if view.state in _ENDED and not view.observed_size:
        return ""
    has = "without nodes"
    if view.observed_size:
        has = f"on {size_words(view.observed_size, view.gpus_per_unit)}"
    return f" {has}; planned: {view.planned_size}"


def _numbers(view: Explanation) -> list[str]:
    """Return the figures by which the last decision went."""
    if view.decision_id is None:
        return ["no decision has been made about it yet"]
    lines = list[str]()
    if view.terms:
        width = max(len(term.name) for term in view.terms)
        lines.append(f"what the policy {view.policy} went by:")
        lines += [f"  {shown(term.name):<{width}}  {_valued(term)}" for term in view.terms]
    if view.speeds:
        headers = (">GPUS" if view.gpus_per_unit else ">NODES", ">SAMPLES/S", ">LEFT", ">GAIN")
        table = columns(headers, [_speed_row(speed, view) for speed in view.speeds])
        lines.append(f"what it trains with so many {units(min(view.gpus_per_unit, 1))}:")
        lines += [f"  {line}" for line in table.splitlines()]
        if any(speed.change_samples is not None for speed in view.speeds):
            lines.append(f"  GAIN: within the next {view.t_fwd_s:.0f} s, pause included")
    if not lines and not TrainerState(view.state).is_final:
        lines.append("how fast it trains has not been measured yet")
    if lines:
        lines[0] = f"decision {view.decision_id}; {lines[0]}"
    return lines


def _valued(term: Term) -> str:
    if term.unit == "s" and term.value >= 60.0:
        return duration(term.value)
    return f"{quantity(term.value, 6)} {shown(term.unit)}".rstrip()


def _speed_row(speed: SizeSpeed, view: Explanation) -> tuple[str, ...]:
    gain = "-"
    if speed.size == view.planned_size:
        gain = "planned"
    elif speed.change_samples is not None:
        gain = f"{speed.change_samples:+.0f} samples"
    size = str(speed.size)
    if view.gpus_per_unit > 1:
        size = size_words(speed.size, view.gpus_per_unit)
    return size, quantity(speed.samples_per_s, 4), duration(speed.left_s), gain


@verb(SOCKET, example="bftrainer metrics")
def metrics(socket_name: str | None) -> None:
    """Print the daemon's metrics in Prometheus' text format."""
    print_as_it_is(*connect(socket_name).metrics().splitlines())
