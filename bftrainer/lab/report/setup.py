"""The set-up of a report's replays, as text for captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.session import Choices, ReplayRun, job_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The source of the runs."""

    trace: str  # as the user named it
    workload: str
    costs: str
    command: str  # repeats these runs

    def sentence(self, runs: Sequence[ReplayRun]) -> str:
        """Return trace, workload and choices in words."""
        run = runs[0]
        outcome, choices = run.outcome, run.choices
        name, trace = Path(self.trace).name, outcome.trace
        text = (
            f"Trace {name}: {len(trace.names):,} nodes, {trace.duration_s / HOUR_S:,.4g} h, "
            f"{run.metrics.events:,} events, N_eq {run.metrics.n_eq:,.1f}. "
            f"Workload {self.workload}: {len(outcome.trainers):,} trainers, P_jmax "
            f"{choices.p_jmax}, T_fwd {choices.t_fwd_s:g} s, "
            f"objective {choices.objective.value}, "
            f"costs {self._costs(choices)}, seed {choices.seed}."
        )
        jobs = [r for r in runs if not load_policy(r.choices.policy).traits.rescales]
        if jobs:
            nodes = job_nodes(trace, jobs[0].choices)
            text += f" A job of {jobs[0].choices.policy} asks for {nodes} node{'s' * (nodes > 1)}."
        return text

    def _costs(self, choices: Choices) -> str:
        polls = "" if choices.poll_s is None else f", a poll each {choices.poll_s:g} s"
        return self.costs if choices.costs is None else f"{self.costs} ({choices.costs}{polls})"
