"""``bftrainer cancel``, ``hold``, ``release``, ``update``, ``requeue``; ``drain`` and ``resume``.

The former change trainers, with the exit code of the first failure; the latter are an
administrator's switch for all nodes.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click

from bftrainer.api.documents import listing
from bftrainer.cli.common import connect
from bftrainer.cli.main import print_error
from bftrainer.cli.mistakes import Meant
from bftrainer.cli.next_commands import print_next_of_trainers
from bftrainer.cli.option_values import GpuSizes, NodeSizes, parse_gpus, parse_sizes
from bftrainer.cli.options import JSON, SOCKET, is_trainer_id, option, trainer_ids, verb
from bftrainer.cli.output import duration, print_json, print_lines
from bftrainer.cli.selection import SELECTION, chosen_ids, selection_of
from bftrainer.cli.sizes import changed_sizes
from bftrainer.model.columns import counted, shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.size_words import size_words, units
from bftrainer.model.time_limits import limit_text, parse_time_limit
from bftrainer.model.trainer import TrainerChange, TrainerState
from bftrainer.model.views import TrainerView

TURN_S = 0.1
MOST_NAMED = 3  # trainers for which a next step is told
PATIENCE_S = 20.0  # after the deadline, until the batch system says that the pilots are gone
MOST_S = 86_400
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"([0-9]{1,6})([smh]?)\Z")
_CHOSEN = trainer_ids(nargs=-1, is_required=False)  # by ids, or by user, name and state
# Nobody is to give names: they are taken so that it can be said what was meant.
_NAMES = trainer_ids(nargs=-1, is_required=False)
_NAMES.metavar = ""


def for_each(
    trainer_ids: Sequence[str],
    ask: Callable[[str], TrainerView],
    say: Callable[[str, TrainerView], str],
    *,
    as_json: bool,
) -> int:
    """Ask for each trainer and print what ``say`` makes of the answers, or all as JSON."""
    exit_code, views = ExitCode.OK, []
    for trainer_id in dict.fromkeys(trainer_ids):
        try:
            view = ask(trainer_id)
        except BftError as error:
            print_error(error)
            exit_code = exit_code or error.exit_code
            if error.exit_code == ExitCode.DAEMON_UNREACHABLE:
                break  # the others would fail, too
        else:
            views.append(view)
            if not as_json:
                print_lines(shown(say(trainer_id, view)))
    if as_json:
        print_json(listing("trainers", views))
    return int(exit_code)


@verb(_CHOSEN, *SELECTION, JSON, SOCKET, example="bftrainer hold t1 t2")
def hold(socket_name: str | None, *, as_json: bool, **selection: Any) -> int:
    """Keep the trainers ID... from having nodes; those that run leave after a checkpoint."""
    client, change = connect(socket_name), TrainerChange(is_held=True)
    ids = chosen_ids(selection_of(selection), client)
    return for_each(ids, lambda i: client.change(i, change), _held, as_json=as_json)


@verb(_CHOSEN, *SELECTION, JSON, SOCKET, example="bftrainer release t1 t2")
def release(socket_name: str | None, *, as_json: bool, **selection: Any) -> int:
    """Let held trainers have nodes again; they go on from their checkpoints."""
    client, change = connect(socket_name), TrainerChange(is_held=False)
    ids = chosen_ids(selection_of(selection), client)
    return for_each(ids, lambda i: client.change(i, change), _released, as_json=as_json)


@verb(
    trainer_ids(nargs=-1),
    option("-N, --nodes MIN:MAX", "NodeSizes it may have, in nodes; or a set.", parse_sizes,
           name="sizes"),
    option("-G, --gpus MIN:MAX", "The same in GPUs, of a trainer that asked for GPUs.", parse_gpus,
           name="gpus"),
    option("--weight W", "Priority under the weighted objective.", float),
    option("-J, --job-name, --name NAME", "Name of the trainer.", name="name"),
    option("-t, --time LIMIT", "Time limit from its first step on, as for submit; 0: none.",
           parse_time_limit, name="limit_s"),
    JSON, SOCKET,
    example="bftrainer update t1 --nodes 2:16 --weight 2",
)  # fmt: skip
def update(
    trainer_ids: tuple[str, ...],
    sizes: NodeSizes | None,
    gpus: GpuSizes | None,
    weight: float | None,
    name: str | None,
    limit_s: float | None,
    socket_name: str | None,
    *,
    as_json: bool,
) -> int:
    """Change the trainers ID..., whether they run or wait; the next decision knows it."""
    change = TrainerChange(weight=weight, name=name, time_limit_s=limit_s)
    if change == TrainerChange() and sizes is None and gpus is None:
        raise click.UsageError(
            "There is nothing to change: give --nodes, --weight, --time or --job-name."
        )
    client = connect(socket_name)

    def ask(trainer_id: str) -> TrainerView:
        if sizes is None and gpus is None:
            return client.change(trainer_id, change)
        # What its sizes count never changes.
        spec = client.trainer(trainer_id).record.spec
        new_sizes = changed_sizes(spec, sizes, gpus)
        n_min, n_max, size_set = new_sizes or (None, None, None)
        return client.change(trainer_id, replace(change, n_min=n_min, n_max=n_max, sizes=size_set))

    return for_each(trainer_ids, ask, _changed, as_json=as_json)


@verb(trainer_ids(nargs=-1), JSON, SOCKET, example="bftrainer requeue t1")
def requeue(trainer_ids: tuple[str, ...], socket_name: str | None, *, as_json: bool) -> int:
    """Start the trainers ID... again from their checkpoints.

    One that runs writes a checkpoint, leaves its nodes and waits for new ones. One that has
    failed or was cancelled is submitted again as a new trainer with the same checkpoint directory.
    """
    client, new_ids = connect(socket_name), list[str]()

    def ask(trainer_id: str) -> TrainerView:
        view = client.requeue(trainer_id)
        new_ids.append(view.record.trainer_id)
        return view

    status = for_each(trainer_ids, ask, _requeued, as_json=as_json)
    if new_ids and not as_json:
        print_next_of_trainers(new_ids, socket_name)
    return status


def _changed(trainer_id: str, view: TrainerView) -> str:
    spec = view.record.spec
    sizes = f"{spec.nodes} {units(spec.gpus_per_unit)}"
    about = f"{spec.name}, {sizes}, weight {spec.weight:g}"
    if spec.time_limit_s is not None:
        about += f", time limit {limit_text(spec.time_limit_s)}"
    return f"{trainer_id} is {view.record.state} and from the next decision on: {about}"


def _held(trainer_id: str, view: TrainerView) -> str:
    effect = "gets no nodes"
    if view.observed_nodes:
        size = size_words(len(view.observed_nodes), view.record.spec.gpus_per_unit)
        effect = f"writes a checkpoint and leaves its {size}"
    return f"{trainer_id} is held: it {effect}, until 'bftrainer release {trainer_id}'"


def _released(trainer_id: str, view: TrainerView) -> str:
    return f"{trainer_id} is {view.record.state} and may have nodes"


def _requeued(trainer_id: str, view: TrainerView) -> str:
    new_id = view.record.trainer_id
    if new_id != trainer_id:
        return f"{trainer_id} is submitted again as trainer {new_id}"
    if view.record.requeued_s is None:
        return f"{trainer_id} is {view.record.state} and has no workers to stop"
    return f"{trainer_id} is requeued: it leaves its nodes and starts again from its checkpoint"


@verb(
    _CHOSEN,
    option("--now", "Kill their workers; write no checkpoint first."),
    *SELECTION, JSON, SOCKET,
    example="bftrainer cancel t1 t2",
)  # fmt: skip
def cancel(socket_name: str | None, *, now: bool, as_json: bool, **selection: Any) -> int:
    """End the trainers ID... after a last checkpoint; their checkpoints stay."""
    client = connect(socket_name)
    ids = chosen_ids(selection_of(selection), client)
    return for_each(ids, lambda i: client.cancel(i, now=now), _cancelled, as_json=as_json)


def _cancelled(trainer_id: str, view: TrainerView) -> str:
    record = view.record
    if record.state.is_final:
        return f"{trainer_id} is {record.state}"
    return f"{trainer_id} ends: {record.reason}"


def parse_duration(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``5m`` or ``1h``; BFT-1547 for anything else."""
    match = _DURATION.match(text)
    if match is not None:
        seconds = int(match[1]) * _UNITS_S[match[2]]
        if seconds <= MOST_S:
            return float(seconds)
    raise UsageError(
        "BFT-1547",
        f"{text[:40]!r} is not a time of at most a day.",
        "Write for example 60s, 5m or 1h.",
    )


def _listed(names: Sequence[str]) -> str:
    return shown(", ".join(names)[:80])


def _keeping(names: Sequence[str]) -> str:
    """Return how to keep single trainers, or nodes, from each other."""
    if all(map(is_trainer_id, names)):
        return f"bftrainer hold {' '.join(names)} keeps trainers from having nodes"
    return (
        f"'scontrol update NodeName={shlex.quote(names[0])} State=DRAIN Reason=...' keeps jobs of"
        " all users from a node of Slurm, pilots among them; 'bftrainer hold ID' stops a trainer"
    )


def _going_on(trainer_id: str, socket_name: str | None) -> str:
    """Return what has a trainer go on, in the state that it is in."""
    try:
        view = connect(socket_name).trainer(trainer_id)
    except BftError:
        return (
            f"bftrainer release {trainer_id} lets a held trainer go on, bftrainer requeue"
            f" {trainer_id} starts one again that has ended"
        )
    record, again = view.record, f"bftrainer requeue {trainer_id}"
    steps = (
        (
            record.state is TrainerState.FINISHED,
            f"{trainer_id} is finished: submit its script again with more --epochs",
        ),
        (record.state.is_final, f"{again} (it is {record.state})"),
        (record.cancelled_s is not None, f"{again} when it has ended (it is being cancelled)"),
        (
            record.overtime_s is not None,
            f"bftrainer update {trainer_id} --time LIMIT (its time limit is over)",
        ),
        (record.held_s is not None, f"bftrainer release {trainer_id} (it is held)"),
        (bool(view.observed_nodes), f"bftrainer status {trainer_id} (it trains already)"),
        (True, f"bftrainer explain {trainer_id} (it waits for nodes)"),
    )
    return next(step for is_so, step in steps if is_so)


@verb(
    option("--all", "All nodes; required, so that nobody does it by mistake.", name="is_all"),
    option("--deadline TIME", "All nodes are back after this; until then workers save.",
           parse_duration, "60s", name="limit_s"),
    JSON, SOCKET, _NAMES,
    example="bftrainer drain --all --deadline 5m",
)  # fmt: skip
def drain(
    trainer_ids: tuple[str, ...],
    socket_name: str | None,
    *,
    is_all: bool,
    limit_s: float,
    as_json: bool,
) -> int:
    """Give all nodes back, and take none until 'bftrainer resume'.

    Trainers write a checkpoint and stay queued. It survives the end of the daemon. Returns when
    all nodes are back; interrupting it changes nothing. Exit code 7: some are not.
    """
    if trainer_ids:
        raise UsageError(
            "BFT-1463",
            f"'bftrainer drain' is of all nodes and takes no names ({_listed(trainer_ids)}).",
            f"{_keeping(trainer_ids)}.",
        )
    if not is_all:
        cause = "Option '--all' is missing, which says that all trainers leave all nodes."
        raise Meant(cause, click.get_current_context(), "bftrainer drain --all")
    client, began_s = connect(socket_name), time.monotonic()
    nodes = client.drain(limit_s).nodes
    while True:  # until the batch system says so
        view, took_s = client.status(), time.monotonic() - began_s
        left = view.nodes_held + view.nodes_requested
        if not left or took_s > limit_s + PATIENCE_S:
            break
        time.sleep(TURN_S)
    if as_json:
        print_json({"nodes": list(nodes), "took_s": round(took_s, 3), "left": left})
    elif not left:
        outcome = "No node was held."
        if nodes:
            count = counted(len(nodes), "node is", "nodes are")
            outcome = f"{count} given back after {took_s:.1f} s."
        print_lines(f"{outcome} None are taken until 'bftrainer resume'.")
    if not left:
        return ExitCode.OK
    raise BftError(
        "BFT-1548",
        f"{counted(left, 'node is', 'nodes are')} not back after {duration(took_s)}; the daemon"
        " goes on trying.",
        "Look at 'bftrainer status'; without the daemon: scancel of the pilots' partition "
        "(docs/howto/operate.md).",
        exit_code=ExitCode.TIMEOUT,
    )


@verb(JSON, SOCKET, _NAMES, example="bftrainer resume")
def resume(trainer_ids: tuple[str, ...], socket_name: str | None, *, as_json: bool) -> None:
    """Take nodes again after 'bftrainer drain'."""
    if trainer_ids:
        raise UsageError(
            "BFT-1463",
            f"'bftrainer resume' is of all nodes and takes no names ({_listed(trainer_ids)}).",
            f"{'; '.join(_going_on(name, socket_name) for name in trainer_ids[:MOST_NAMED])}.",
        )
    takes_nodes = connect(socket_name).resume()
    if as_json:
        print_json({"resumed": True, "is_ending": not takes_nodes})
    elif takes_nodes:
        print_lines("Nodes are taken again.")
    else:
        print_lines("This daemon is about to end; the next one takes nodes again.")
