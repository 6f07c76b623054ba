"""Which parameters tell the trials that came far from the others.

Optuna's PED-ANOVA (Watanabe et al., IJCAI 2023) on the places of the trials: of those that trained
further the better, whatever they reported. Few trials of a study train in full, and values after
different budgets do not compare.
"""

from __future__ import annotations

import warnings
from typing import Any

from bftrainer.study.outcome import TrialRow
from bftrainer.study.parameters import CategoricalParameter
from bftrainer.study.plots.material import Material
from bftrainer.study.plots.style import ACTIVE, plain

LEAST = 5  # trials with values, or nothing can be said
TOP = 0.1  # of the trials are held against all


def ranked(found: Material) -> list[TrialRow]:
    """Return the trials that reported a value, best first: the further the better."""
    best_first = found.with_values[::-1]
    return sorted(best_first, key=lambda row: -row.units)


def importances(found: Material) -> dict[str, float]:
    """Return the share of each parameter, greatest first; {}: too little is known."""
    rows = ranked(found)
    searched = {
        name: one
        for name, one in found.parameters.items()
        if (len(one.choices) if isinstance(one, CategoricalParameter) else one.high - one.low) > 0
    }
    if len(rows) < LEAST or not searched:
        return {}
    import optuna  # noqa: PLC0415 - 0.2 s, and optional

    from bftrainer.study.space import distributions_of  # noqa: PLC0415 - it imports optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = distributions_of(searched)
    study = optuna.create_study()
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={name: row.parameters[name] for name in searched},
                distributions=distributions,
                value=float(place),
            )
            for place, row in enumerate(rows)
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(
            target_quantile=max(TOP, 2.0 / len(rows))
        )
        return optuna.importance.get_param_importances(study, evaluator=evaluator)


def draw(figure: Any, found: Material) -> None:
    """Draw a bar per parameter."""
    shares, axes = importances(found), figure.subplots()
    axes.set_title("Importance of the parameters")
    if not shares:
        axes.set_axis_off()
        needed = f"{LEAST} trials with values, and a parameter that varies, are needed"
        axes.text(0.5, 0.5, needed, ha="center", transform=axes.transAxes)
        return
    names = list(shares)[::-1]
    bars = axes.barh(names, [shares[name] for name in names], color=ACTIVE, height=0.6)
    axes.bar_label(bars, labels=[f"{shares[name]:.2f}" for name in names], padding=3)
    axes.set_xlim(0.0, 1.12)
    axes.set_xlabel(f"share of what sets the best {TOP:.0%} of the trials apart")
    plain(axes)
    axes.grid(visible=False, axis="y")
