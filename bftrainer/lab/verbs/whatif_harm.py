"""``bftrainer whatif --harm``: the administrator's own site, and what its jobs would notice.

Reads slurm.conf or what ``scontrol`` prints, and what ``sacct`` prints; plays parts of the log on a
simulation of the site; prints a report or JSON.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bftrainer.batch.traces.text import ReadOptions, unreadable
from bftrainer.cli.options import FILE, option
from bftrainer.cli.output import print_json
from bftrainer.ground.regular_file import open_stream
from bftrainer.lab.verbs.report_text import print_report
from bftrainer.lab.verbs.trace import LateProgress, instant
from bftrainer.model.columns import counted
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.hostlist import ParseError
from bftrainer.model.parts import Lend

if TYPE_CHECKING:
    from bftrainer.batch.traces.sacct_jobs import JobLog
    from bftrainer.lab.harm.document import Told
    from bftrainer.lab.harm.replica import Replica
    from bftrainer.lab.harm.study import HarmChoices
    from slurm_plugins.described_site import DescribedSite

HOUR_S = 3600.0
LONGEST_FILE = 64 << 20  # bytes
HARM_OPTIONS = [
    option("--harm", "Say what the jobs of your own site would notice.", name="harm"),
    option("--slurm-conf FILE", "With --harm: slurm.conf, or the output of scontrol show config.",
           FILE, name="slurm_conf"),
    option("--scontrol FILE", "With --harm: the output of scontrol show node and scontrol show "
           "partition, one after the other; else slurm.conf names nodes and partitions.", FILE,
           name="scontrol_file"),
    option("--bf-cycle S", "With --harm: how long a cycle of backfill takes (sdiag).",
           click.FloatRange(0.01, 3600.0), 0.5, name="cycle_s"),
    option("--scale-load X", "With --harm: draw submissions X times closer together.",
           click.FloatRange(0.1, 10.0), 1.0, name="closer"),
    option("--play HOURS", "With --harm: how much of the log to play beside bftrainer  [default: "
           "what takes about four minutes on two cores]",
           click.FloatRange(min=0, min_open=True), name="play_hours"),
    option("--lend", "With --harm: what the policy lends. Beside nodes, auto is played, too, where "
           "jobs share nodes with GPUs.", click.Choice([lend.value for lend in Lend]),
           Lend.NODES.value, name="lend"),
    option("--no-settings", "With --harm: try no other settings.", name="no_settings"),
    option("--worker-start S", "With --harm: from an agent's hello to its worker's first step.",
           click.FloatRange(0.0, 3600.0), 5.0, name="worker_start_s"),
    option("--watts-per-node [TYPE=]W", "With --harm: what a node draws; repeat for several types.",
           name="watts", multiple=True),
    option("--price-per-node-hour", "With --harm: what a node-hour would cost elsewhere.",
           click.FloatRange(0), name="node_hour"),
    option("--price-per-gpu-hour", "With --harm: what a GPU-hour would cost elsewhere.",
           click.FloatRange(0), name="gpu_hour"),
    option("--price-per-kwh", "With --harm: of the energy, with --watts-per-node.",
           click.FloatRange(0), name="kwh"),
]  # fmt: skip
OWN_NAMES = frozenset({
    *("slurm_conf", "scontrol_file", "cycle_s", "closer", "play_hours", "no_settings"),
    *("worker_start_s", "watts", "node_hour", "gpu_hour", "kwh", "lend"),
})  # fmt: skip
SHARED_NAMES = frozenset({
    *("harm", "sacct_file", "start", "end", "hours", "time_zone", "ignored", "policies", "seed"),
    *("reserve_nodes_per_type", "min_gap_s", "gap_margin_s", "processes", "as_json"),
})  # fmt: skip
POLICY_KEYS = ("reserve_nodes_per_type", "min_gap_s", "gap_margin_s")
PILOTS = "bf"  # the partition of pilots unless told otherwise


def is_asked(context: click.Context) -> bool:
    """Return whether the command asks for harm.

    Raises:
        UsageError: BFT-4142, an option belongs to the other question.
    """
    is_harm = bool(context.params["harm"])
    without_effect = OWN_NAMES
    if is_harm:
        without_effect = frozenset(context.params) - OWN_NAMES - SHARED_NAMES
    for parameter in context.command.params:
        if parameter.name not in without_effect:
            continue
        if context.get_parameter_source(parameter.name) is not ParameterSource.COMMANDLINE:
            continue
        option_name = parameter.opts[0]
        if is_harm:
            raise UsageError(
                "BFT-4142",
                f"{option_name} has no effect with --harm.",
                "Leave it out, or ask without --harm.",
            )
        raise UsageError(
            "BFT-4142",
            f"{option_name} has an effect only with --harm.",
            "Add --harm, or leave it out.",
        )
    return is_harm


def answer_harm(*, as_json: bool, processes: int, **options: Any) -> None:
    """Answer ``whatif --harm``.

    Raises:
        BftError: 4142 to 4147, the options, the files or the log; 4001 to 4008, the log.
    """
    from bftrainer.lab.harm.document import as_document, report_of  # noqa: PLC0415 - numpy

    began_s = time.monotonic()
    config, log_file = options["slurm_conf"], options["sacct_file"]
    if config is None or log_file is None:
        raise UsageError(
            "BFT-4142",
            "--harm needs the site and its log.",
            "Give --slurm-conf FILE and --sacct FILE; docs/howto/choose-settings.md has how to "
            "make them.",
        )
    site = read_description(config, options["scontrol_file"])
    ignored = options["ignored"] or (PILOTS,)
    log = _log(log_file, ignored, options)
    partitions = {partition.name for partition in site.partitions}
    unknown = [name for name in options["ignored"] if name not in partitions]
    if unknown and not log.n_ignored:
        raise UsageError(
            "BFT-4147",
            f"--ignore: neither the site nor the log has a partition {unknown[0][:40]!r}.",
            f"Name one of: {', '.join(sorted(partitions))}.",
        )
    answer = _answer(site, log, ignored, options, processes, began_s)
    if as_json:
        print_json(as_document(answer))
    else:
        print_report(report_of(answer))


def read_description(config: Path, scontrol_file: Path | None) -> DescribedSite:
    """Read the site.

    Raises:
        UsageError: BFT-4143, the files cannot be read as such; BFT-4144, nodes are missing.
        TraceError: BFT-4002, a file cannot be opened.
    """
    from slurm_plugins.described_site import has_nodes, read_site  # noqa: PLC0415

    text = _text(config)
    if scontrol_file is None and not has_nodes(text):
        raise UsageError(
            "BFT-4144",
            f"{config.name} is the output of scontrol show config, which names no nodes.",
            "Give --scontrol FILE, too: (scontrol show node; scontrol show partition) > site.txt.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    nodes = ""
    if scontrol_file is not None:
        nodes = _text(scontrol_file)
    try:
        return read_site(text, nodes)
    except ParseError as problem:
        names = " and ".join(file.name for file in (config, scontrol_file) if file is not None)
        raise UsageError(
            "BFT-4143",
            f"{names}: {problem}.",
            "Give slurm.conf itself, or the output of scontrol as it is.",
            exit_code=ExitCode.VALIDATION_FAILED,
        ) from problem


def _text(path: Path) -> str:
    try:
        with open_stream(path, is_typed=True) as stream:
            return stream.read(LONGEST_FILE).decode("utf-8", errors="backslashreplace")
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _log(file: Path, ignored: tuple[str, ...], options: Mapping[str, Any]) -> JobLog:
    from bftrainer.batch.traces.sacct_jobs import read_jobs  # noqa: PLC0415 - numpy

    zone = options["time_zone"]
    start_s = instant(options["start"], zone, "--start")
    end_s = instant(options["end"], zone, "--end")
    if options["hours"] is not None:
        if end_s is not None or start_s is None:
            raise click.UsageError("Give --hours with --start, and without --end.")
        end_s = start_s + options["hours"] * HOUR_S
    reading = ReadOptions(time_zone=zone, start_s=start_s, end_s=end_s, ignored=tuple(ignored))
    try:
        with LateProgress(f"reading {file.name}") as progress:
            return read_jobs(file, reading, progress.report)
    except OSError as problem:
        raise unreadable(file, problem) from problem


def _answer(
    site: DescribedSite,
    log: JobLog,
    ignored: tuple[str, ...],
    options: Mapping[str, Any],
    processes: int,
    began_s: float,
) -> Told:
    from bftrainer.lab.harm.document import Prices, Told  # noqa: PLC0415 - numpy
    from bftrainer.lab.harm.replica import replica  # noqa: PLC0415
    from bftrainer.lab.harm.study import study  # noqa: PLC0415

    closer = options["closer"]
    played_site = replica(site, log, cycle_s=options["cycle_s"], closer=closer, ignored=ignored)
    choices = _choices(played_site, options)
    with LateProgress("playing the site") as progress:
        answer = study(played_site, choices, processes=processes, on_progress=progress.report)
    return Told(
        study=answer,
        source=options["sacct_file"].name,
        prices=Prices(
            node_hour=options["node_hour"], gpu_hour=options["gpu_hour"], kwh=options["kwh"]
        ),
        warnings=(*log.warnings, *_never_ran(log)),
        cycle_s=options["cycle_s"],
        closer=closer,
        processes=processes,
        took_s=time.monotonic() - began_s,
    )


def _never_ran(log: JobLog) -> tuple[str, ...]:
    if not log.n_never_ran:
        return ()
    jobs = counted(log.n_never_ran, "job")
    text = f"{jobs} of the log never ran: cancelled, or still waiting. The real queue was longer."
    return (text,)


def _choices(site: Replica, options: Mapping[str, Any]) -> HarmChoices:
    """Return how to ask.

    Raises:
        UsageError: BFT-4142, several policies; BFT-3050, there is no such one; BFT-4147, a wrong
            --watts-per-node; BFT-2123, nothing would be lent.
    """
    from bftrainer.decide.policies.base import load_policy  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.lab.harm.study import HarmChoices  # noqa: PLC0415
    from bftrainer.site.policy.model import SitePolicy  # noqa: PLC0415

    policies, defaults = options["policies"], SitePolicy()
    for name in policies:
        load_policy(name)
    if len(policies) > 1:
        raise UsageError(
            "BFT-4142",
            f"--harm plays one policy, not {len(policies)}.",
            "Give --policy once, and ask again for another.",
        )
    lend = Lend(options["lend"])
    _check_lent(site, lend)
    values = {"policy": policies[0], **{key: options[key] for key in POLICY_KEYS}}
    return HarmChoices(
        policy_values={k: value for k, value in values.items() if value != getattr(defaults, k)},
        worker_start_s=options["worker_start_s"],
        hours=options["play_hours"],
        has_settings=not options["no_settings"],
        is_closer=options["closer"] != 1.0,
        watts=watts_of(options["watts"], [kind.name for kind in site.node_types]),
        seed=options["seed"],
        lend=lend,
    )


def _check_lent(site: Replica, lend: Lend) -> None:
    """Check that something is lent.

    Raises:
        UsageError: BFT-2123, only GPUs are to be lent, and no node lends any one by one.
    """
    if lend is not Lend.GPUS or any(node.lends for node in site.lending):
        return
    reasons = list(dict.fromkeys(node.why_whole for node in site.lending if node.why_whole))
    raise UsageError(
        "BFT-2123",
        " ".join(("--lend gpus: no node of the site lends GPUs one by one.", *reasons[:3])),
        "Ask with --lend auto, which lends whole nodes there.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )


def watts_of(texts: tuple[str, ...], types: list[str]) -> dict[str, float]:
    """Return what nodes draw by type; "" stands for the others.

    Raises:
        UsageError: BFT-4147, it is no number, or there is no such type.
    """
    watts_by_type = dict[str, float]()
    for text in texts:
        kind, _, number = text.rpartition("=")
        try:
            watts = float(number)
        except ValueError:
            watts = math.nan
        if kind and kind not in types:
            raise UsageError(
                "BFT-4147",
                f"--watts-per-node: the site has no nodes of type {kind[:40]!r}.",
                f"Name one of: {', '.join(types)}.",
            )
        if not 0.0 <= watts < math.inf:
            raise UsageError(
                "BFT-4147",
                f"--watts-per-node: {number[:40]!r} is not a number of watts.",
                "Write --watts-per-node 400, or TYPE=400 for nodes of one type.",
            )
        watts_by_type[kind] = watts
    return watts_by_type
