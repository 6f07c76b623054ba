"""``bftrainer policy train``: train the network of a policy that learns, beside the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.common import json_option, print_json
from bftrainer.lab.parallel import one_thread
from bftrainer.model.errors import BftError, ExitCode, UsageError

if TYPE_CHECKING:
    from bftrainer.decide.policies.dl2_network import Network


@click.command(name="train")
@click.argument("name", type=click.Choice(["dl2"]), metavar="dl2")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
              metavar="FILE.npz", help="Where the network goes if it is better.")  # fmt: skip
@click.option("--from", "journal", metavar="JOURNAL",
              type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Learn from the decisions in journal.db of a daemon, and on its pool; else on "
              "drawn pools.")  # fmt: skip
@click.option("--teacher", default="utility-exact", show_default=True, metavar="POLICY",
              help="Whose decisions are imitated first, without --from.")  # fmt: skip
@click.option("--predecessor", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              metavar="FILE.npz", help="The network in use; else the one shipped.")  # fmt: skip
@click.option("--iterations", type=click.IntRange(0, 10_000), default=30, show_default=True,
              help="Episodes that it then plays, four times each.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="The same seed gives the same network.")  # fmt: skip
@json_option
def train(
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

    from bftrainer.cli.trace import LateProgress  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.decide.policies.dl2 import POLICY  # noqa: PLC0415
    from bftrainer.decide.policies.dl2_network import to_bytes  # noqa: PLC0415
    from bftrainer.lab.teach.course import drawn, of_journal, policy_of, teach  # noqa: PLC0415  # noqa: PLC0415

    source = of_journal(journal, seed) if journal else drawn(teacher, seed)
    before = POLICY if predecessor is None else policy_of(_network(predecessor))
    rivals = {source.teacher.name: source.teacher, "its predecessor": before}
    with LateProgress(f"training {name}") as progress:
        taught = teach(
            source.labels,
            source.episodes,
            rivals,
            seed=seed,
            iterations=iterations,
            on_progress=progress.report,
        )
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
    click.echo(f"{out}: mean time of trainers {shown}.")


def _network(path: Path) -> Network:
    from bftrainer.decide.policies.dl2_network import ModelError, of_bytes  # noqa: PLC0415

    try:
        return of_bytes(path.read_bytes())
    except (OSError, ModelError) as error:
        raise UsageError(
            "BFT-4182",
            f"The file {path} holds no network: {error}.",
            "Name a file that 'bftrainer policy train' wrote.",
        ) from error
