"""The evaluation in section IV."""

from __future__ import annotations

from bftrainer.lab.papers.ibm import figures
from bftrainer.lab.papers.ibm.jobs import GPUS_PER_MACHINE, read_world
from bftrainer.lab.papers.ibm.replays import FULL, ORDERED, QUICK, TABLES, play
from bftrainer.lab.papers.paper import Scenario, paper_of


def choose_scenario(*_: object) -> Scenario:
    """Return a pool of equal GPUs: what the paper does not say, and what speaks for ours."""
    world = read_world(ORDERED)
    one, two, three, four = world.categories
    words = {
        "caps": f"{one.cap}, {two.cap}, {three.cap}, {four.cap}",
        "fixed": f"{one.fixed:g}, {two.fixed:g}, {three.fixed:g}",
        "comm": f"{one.comm:g}, {two.comm:g}, {three.comm:g}",
        "between_machines": f"{world.between_machines:g}",
        "high": world.high,
        "low": world.low,
        "k_max": world.k_max,
    }
    return Scenario(
        summary="The paper's discrete-event simulation (section III-E) of 40 and 400 GPUs, with "
        "the dynamic program of the policy ibm-dp.",
        document={"cluster": {"gpus_per_machine": GPUS_PER_MACHINE, "k_max": world.k_max}},
        remarks=[
            f"Assumed {assumed.format(**words)}: {why}."
            for assumed, why in TABLES["assumptions"]["rows"].items()
        ],
    )


PAPER = paper_of(
    __package__,
    figures,
    full=FULL,
    quick=QUICK,
    choose_scenario=choose_scenario,
    play=play,
    cost=lambda run: (-run.gpus, not run.waits, -run.minutes),
    reads_trace=False,
)
