"""Explains the global batch of a trainer that admits several. Pure.

Called by ``service`` (explain).
"""

from __future__ import annotations

from bftrainer.decide.throughput.goodput import efficiency
from bftrainer.model.batch import ADASCALE
from bftrainer.model.trainer import TrainerRecord


def batch_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say which batch it trains with, and why not another."""
    bounds, progress = record.spec.batch, record.progress
    if bounds is None or not (progress.size and progress.batch) or record.state.is_final:
        return ()
    batch = f"Its global batch is {progress.batch} of {bounds.least}:{bounds.most}"
    if bounds.lr_rule != ADASCALE:
        return (f"{batch}, the most samples per second at this size.",)
    if not record.costs.noise_scale:
        return (f"{batch}; it grows when the noise of the gradients is known.",)
    noise = record.costs.noise_scale
    share = efficiency(float(progress.batch), bounds.least, noise)
    worth = f"{100 * share:.0f}% of one in a batch of {bounds.least}"
    return (f"{batch}; the noise scale is {noise:.3g} samples, so each is worth {worth}.",)
