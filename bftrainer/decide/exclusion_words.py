"""What decisions leave out, as sentences for ``status``, ``sizes`` and the log. Pure."""

from __future__ import annotations

from bftrainer.model.decision import Kind, Known, LeftOut

WHAT_TO_DO = (
    "It gets no nodes, and the others are decided without it. It is tried again every minute;"
    " cancel it and submit it with other sizes, weight or curve."
)


def sentences(known: Known) -> tuple[str, ...]:
    """Say for each item what decisions leave out, and why."""
    return tuple(sentence(one) for one in known.values())


def why_left_out(trainer_id: str, known: Known) -> tuple[str, ...]:
    """Say why a trainer gets no nodes and what to do; (): it is not left out."""
    one = known.get(f"{Kind.TRAINER} {trainer_id}")
    return () if one is None else (sentence(one), WHAT_TO_DO)


def sentence(one: LeftOut) -> str:
    """Say what decisions fail on, and why."""
    what = f"{one.kind} {one.name} and leave it out"
    match one.kind:
        case Kind.TRAINER:
            return f"BFT-2116: decisions fail on {what}. {one.reason}"
        case Kind.POLICY:
            return f"BFT-2118: policy {one.name} gives no usable answer. {one.reason}"
        case Kind.REQUEST:
            what = f"the request of job {one.name} and give back as many nodes of any kind"
    return f"BFT-2117: decisions fail on {what}. {one.reason}"
