"""Problems of trainers of several widths, each of which divides the next larger one."""

from __future__ import annotations

import random

from milp.pool import view_pool
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer

# 0 stands for whole hosts.
WIDTHS = ((1, 2, 4, 8), (1, 2), (1, 4), (2, 8), (1, 2, 4, 0), (1, 3, 6), (0, 8, 1), (2, 4, 0))


def draw_mixed(seed: int, *, most_hosts: int = 3, most_trainers: int = 4) -> Problem:
    """Draw a small problem with units of two widths at least."""
    chance = random.Random(seed)  # noqa: S311 - a test
    while True:
        problem = _drawn(chance, most_hosts, most_trainers, warms_up=bool(seed % 2))
        if len(view_pool(problem).names) > 1:
            return problem


def _drawn(
    chance: random.Random, most_hosts: int, most_trainers: int, *, warms_up: bool
) -> Problem:
    """Draw hosts that jobs have a part of, parts of ours, free GPUs and trainers."""
    widths = chance.choice(WIDTHS)
    host_width = chance.choice([8, 8, 6, 4])
    nodes: list[ProblemNode] = []
    for h in range(chance.randint(1, most_hosts)):
        left = host_width - chance.choice([0, 0, 1, chance.randint(0, host_width)])
        while left > 0:
            fitting = [width for width in widths if 0 < width <= left]
            if 0 in widths:  # no part that is a whole host: two kinds would want it
                fitting = [width for width in fitting if width < host_width]
            width = chance.choice(fitting or [1])
            is_part = bool(fitting) and chance.random() < 0.4
            nodes.append(
                ProblemNode(
                    name=f"h{h}/{left}",
                    host=f"h{h}",
                    host_width=host_width,
                    width=width if is_part else 1,
                    has_pilot=is_part,
                )
            )
            left -= nodes[-1].width
    unheld = [node for node in nodes if node.has_pilot]
    trainers: list[ProblemTrainer] = []
    first_two = chance.sample(widths, 2)
    for j in range(chance.randint(2, most_trainers)):
        width = first_two[j] if j < 2 else chance.choice(widths)
        own = [node.name for node in unheld if node.width == width][: chance.choice([0, 1, 2, 4])]
        unheld = [node for node in unheld if node.name not in own]
        n_min = chance.choice([1, 1, 1, 2, 3])
        sizes = sorted(chance.sample(range(1, 8), chance.randint(1, 3)))
        slope = chance.choice([0.0, 0.0, 1.0, 0.5])  # of several trainers alike: many ties
        rates = [slope * size or chance.choice([1.0, 2.0, 6 * chance.random()]) for size in sizes]
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=n_min + chance.choice([0, 1, 3, 7]),
                curve=Curve(sizes=tuple(sizes), samples_per_s=tuple(rates)),
                rescale_up_s=chance.choice([0.0, 1.0, 2.5]),
                rescale_down_s=chance.choice([0.0, 1.0, 2.5]),
                current=tuple(own),
                settled=tuple(own[:1]),
                warm_up_s=chance.choice([0.0, 3.0]) if warms_up else 0.0,
                width=width,
            )
        )
    return Problem(
        nodes=tuple(nodes),
        trainers=tuple(trainers),
        t_fwd_s=chance.choice([1.0, 5.0, 120.0]),
        p_jmax=len(trainers),
    )


def draw_site(seed: int, *, n_hosts: int, n_trainers: int, n_corners: int) -> Problem:
    """Draw hosts of 8 GPUs and trainers of 1, 2, 4 and 8 with irregular curves."""
    chance = random.Random(seed)  # noqa: S311 - a test
    widths = (1, 2, 4, 8)
    nodes: list[ProblemNode] = []
    parts: dict[int, list[str]] = {width: [] for width in widths}
    for h in range(n_hosts):
        left = 8 - chance.choice([0, 0, 0, 1, 2, 4, 8])
        while left > 0:
            width = chance.choice([width for width in widths if width <= left])
            is_part = chance.random() < 0.6
            node = ProblemNode(
                name=f"h{h}/{left}",
                host=f"h{h}",
                host_width=8,
                width=width if is_part else 1,
                has_pilot=is_part,
            )
            if is_part:
                parts[width].append(node.name)
            nodes.append(node)
            left -= node.width
    trainers: list[ProblemTrainer] = []
    for j in range(n_trainers):
        width = widths[j % 4]
        own = tuple(parts[width][: chance.choice([0, 1, 2, 5, 9])])
        del parts[width][: len(own)]
        most = 64 // width
        sizes = sorted(chance.sample(range(1, most + 1), min(most, n_corners)))
        rates = [width * chance.uniform(0.4, 1.0) * size for size in sizes]
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=chance.choice([1, 1, 2]),
                n_max=most,
                curve=Curve(sizes=tuple(sizes), samples_per_s=tuple(rates)),
                rescale_up_s=chance.uniform(0.0, 30.0),
                rescale_down_s=chance.uniform(0.0, 15.0),
                current=own,
                settled=own,
                warm_up_s=chance.choice([0.0, 20.0]),
                width=width,
            )
        )
    return Problem(
        nodes=tuple(nodes), trainers=tuple(trainers), t_fwd_s=120.0, p_jmax=len(trainers)
    )
