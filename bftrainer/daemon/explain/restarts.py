"""Explains what a restart, or a loss, costs a trainer. Pure.

Says nothing about trainers resized in place, except MPI programs. Called by ``service`` (explain)
and ``cli.status``.
"""

from __future__ import annotations

from bftrainer.model.trainer import MeasuredCosts, TrainerRecord


def loss_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say what a node taken without notice costs an MPI program."""
    spec = record.spec
    if spec.runtime != "mpi" or record.state.is_final:
        return ()
    return (
        (
            "It is an MPI program, resized in place. A node that is taken without notice costs it"
            " the step in flight; where its domain is cut up, what it did since the last copy in"
            " a neighbour's memory, and if neighbours are lost together, all since its last"
            f" checkpoint, one every {spec.checkpoint_interval_s:g} s."
        ),
    )


def restart_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say that its resizes are restarts, and what they cost."""
    is_restarted = record.spec.contract is not None or record.costs.restart is not None
    if not is_restarted or record.state.is_final:
        return ()
    spec, restart = record.spec, record.costs.restart
    sentences = [
        (
            "A resize of it is a restart, growing or shrinking: it writes a checkpoint and ends,"
            f" then starts at the new size. {_measured(record.costs)}"
        ),
        (
            "A node that is taken without notice costs it all since its last checkpoint; it is"
            f" asked for one every {spec.checkpoint_interval_s:g} s."
        ),
    ]
    if restart is not None and restart.unsaved:
        times = "once" if restart.unsaved == 1 else f"{restart.unsaved} times"
        sentences.append(
            f"It was stopped {times} without writing a checkpoint, and lost what it had done"
            f" since the last one. {restart.unsaved_reason}"
        )
    return tuple(sentences)


def _measured(costs: MeasuredCosts) -> str:
    restart = costs.restart
    if restart is None or restart.start_s is None:
        return "It has never run: the decision uses the policy's guess."
    if restart.stop_s is None:
        return (
            f"Its start took {restart.start_s:.2f} s; no stop was measured yet, so the decision"
            " uses the start alone."
        )
    return (
        f"Measured: {restart.stop_s:.2f} s to stop and {restart.start_s:.2f} s to start; the"
        f" decision uses {restart.stop_s + restart.start_s:.2f} s in both directions."
    )
