"""``bftrainer up`` and ``down``: a daemon of one's own on a partition.

Reads what the site allows this user, chooses the settings, writes them as a policy file and starts
the ordinary daemon with it. ``--dry-run`` prints the same settings.

Trainers stay in the daemon's journal: the next ``bftrainer up`` goes on with them.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from bftrainer.api import address
from bftrainer.cli.common import connect
from bftrainer.cli.next_commands import print_next
from bftrainer.cli.options import JSON, SOCKET, option, verb
from bftrainer.cli.output import print_json, print_lines
from bftrainer.model.errors import BftError, ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from bftrainer.model.site import OwnSite, Wish
    from bftrainer.model.views import StatusView
    from bftrainer.site.own.plan import Chosen, OwnSites


_PASSED_ON = {
    "--comment": "some sites ask for one",
    "-C, --constraint": "features of the nodes",
    "--reservation": "whose nodes pilots use alone",
    "-L, --licenses": "held by each pilot",
    "--wckey": "a label for accounting",
}
# Options whose values a wish has under the same names.
_WISHES = (
    *("partition", "account", "qos", "max_nodes", "time_limit_s", "job_partition"),
    *("network", "ports"),
)
_GONE = ("--gpus-per-pilot", "--cpus-per-pilot", "--mem-per-pilot")  # of earlier releases
TURN_S = 0.1  # between two looks whether the daemon has ended
LIMIT_S = 90.0  # a minute for the last checkpoints
_LIMIT = re.compile(
    r"(?:(?P<days>[0-9]{1,4})-)?([0-9]{1,7})(?::([0-9]{1,2}))?(?::(?P<third>[0-9]{1,2}))?"
)


def _time_limit_s(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Parse M, M:S, H:M:S, D-H, D-H:M or D-H:M:S (sbatch(1), --time)."""
    if text is None:
        return None
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise click.BadParameter("write minutes, H:M:S or D-H, as for sbatch: 240, 4:00:00, 1-12")
    has_days = match.group("days") is not None
    days, first, second, third = map(int, match.groups(default="0"))
    hours, minutes, seconds = first, second, third
    if not has_days and match.group("third") is None:  # minutes come first
        hours, minutes, seconds = 0, first, second
    return float(((24 * days + hours) * 60 + minutes) * 60 + seconds)


def _refuse_gone(_: click.Context, parameter: click.Parameter, text: str | None) -> None:
    if text is not None:
        raise UsageError(
            "BFT-1462",
            f"{parameter.opts[0]} is gone: GPUs are lent with the CPUs and memory that the site "
            "gives to each.",
            "Leave it out; --lend gpus lends GPUs alone.",
        )


@verb(
    option("-p, --partition NAME", "Partition of the pilots.  [default: the only one with "
           "preemption]", default=""),
    option("--max-nodes N", "Hold at most this many nodes at once.  [default: 8]",
           click.IntRange(min=1)),
    option("--lend WHAT", "What pilots hold: GPUs of nodes that jobs share and other nodes as a "
           "whole (auto), whole nodes (nodes), or GPUs alone (gpus).",
           click.Choice(["auto", "nodes", "gpus"]), "auto"),
    *(option(f"{name} N", hidden=True, expose_value=False, callback=_refuse_gone)
      for name in _GONE),
    option("-t, --time LIMIT", "Longest time limit of a pilot, as for sbatch.  [default: 4:00:00]",
           name="time_limit_s", callback=_time_limit_s),
    option("-A, --account NAME", "Account of the pilots.", default=""),
    option("-q, --qos NAME", "QOS of the pilots.", default=""),
    *(option(f"{names} VALUE", f"Passed to the pilots' sbatch: {meaning}.", default="")
      for names, meaning in _PASSED_ON.items()),
    option("--sbatch-option OPTION", "Any other that the site requires: --gres-flags=...; repeat "
           "for more.", name="further", multiple=True),
    option("--bind ADDRESS", "Address to listen on.  [default: all of this host]", default=""),
    option("--announce ADDRESS", "Address where nodes reach this host, if bftrainer cannot know "
           "it.", multiple=True),
    option("--network NETWORK", "Use this network alone: 10.0.0.0/8, ib0.  [default: any]",
           default=""),
    option("--ports FIRST-LAST", "Listen on these ports alone: 41000-41100.  [default: any]",
           default=""),
    option("--preamble FILE", "Shell file under which agents run: module load, activate.",
           name="preamble_file"),
    option("--as-job", "Run it in a batch job of one CPU, where login nodes forbid it."),
    option("--job-partition NAME", "Partition of that job.  [default: the cluster's]", default=""),
    option("--batch-system", default="slurm", hidden=True),
    option("--dry-run", "Check the site and print the settings only."),
    JSON,
    example="bftrainer up --partition scavenge --max-nodes 4",
)  # fmt: skip
def up(
    bind: str,
    announce: tuple[str, ...],
    batch_system: str,
    preamble_file: str | None,
    *,
    as_job: bool,
    dry_run: bool,
    as_json: bool,
    **wished: Any,
) -> int:
    """Start your own daemon, without an administrator.

    Its trainers run on idle nodes of a partition whose jobs are preempted for others
    (scavenge, killable, preempt). It survives your logout; 'bftrainer down' ends it.
    """
    from bftrainer.site.own import plan, start  # noqa: PLC0415 - -h needs none of these
    from bftrainer.site.own.plan import load  # noqa: PLC0415

    wish, sites = _wish(wished, as_job=as_job), load(batch_system)
    site = sites.examine(wish)
    state_dir = address.own_state_dir(os.environ, site.cluster)
    preamble = _checked_preamble(preamble_file)
    if preamble:
        wish = replace(wish, preamble=str(state_dir / start.PREAMBLE_NAME))
    settings = plan.settings_for(site, wish)
    if not as_json:
        _print(site, settings)
    if not (as_job or site.n_floor):
        _propose_job()
    where = "nothing was started"
    if not dry_run:
        _refuse_second(state_dir, sites)
        start.write_files(state_dir, plan.policy_text(settings), preamble)
        argv = start.daemon_argv(state_dir, batch_system, bind, announce)
        socket = str(state_dir / address.SOCKET_NAME)

        def status() -> StatusView:  # the job of --as-job may begin on any host
            return connect(socket).status()

        if as_job:
            where = start.start_as_job(sites, argv, state_dir, wish, status)
        else:
            where = start.start(argv, state_dir, status)
    if as_json:
        answers = {row.name: {"value": row.value, "why": row.why} for row in settings}
        print_json({"site": asdict(site), "settings": answers, "daemon": where})
    else:
        print_lines(where)
        if not dry_run:
            print_next(
                ("bftrainer submit train.py", "hand a script to it"),
                ("bftrainer web", "watch it in a browser"),
                ("bftrainer down", "end it; trainers go on with the next 'bftrainer up'"),
            )
    return ExitCode.OK


def _checked_preamble(path: str | None) -> str:
    """Return the text of the shell file; an agent must start under it here.

    Raises:
        UsageError: BFT-1060, -1061; BFT-1006, this Python does not start under it.
    """
    from bftrainer.cli.preamble import read_preamble, run_under  # noqa: PLC0415

    text = read_preamble(path)
    if text:
        argv = (sys.executable, "-I", "-c", "import trainers.agent.main")
        result = run_under(text, argv, cwd="/")
        if not result.is_ok:
            *_, reason = ("no message", *result.stderr.strip().splitlines())
            raise UsageError(
                "BFT-1006",
                f"{sys.executable} does not start under the preamble {path}: {reason[:300]}",
                "Load what this Python needs there; it runs the agents on the nodes.",
            )
    return text


def _wish(options: Mapping[str, Any], *, as_job: bool) -> Wish:
    from bftrainer.model.parts import Lend  # noqa: PLC0415
    from bftrainer.model.site import Wish  # noqa: PLC0415

    sbatch_options = list[str]()
    for names in _PASSED_ON:
        name = names.rpartition("--")[2]
        if options[name]:
            sbatch_options.append(f"--{name}={options[name]}")
    return Wish(
        **{name: options[name] for name in _WISHES},
        is_as_job=as_job,
        lend=Lend(options["lend"]),
        sbatch_options=(*sbatch_options, *options["further"]),
    )


def _refuse_second(state_dir: Path, sites: OwnSites) -> None:
    daemon = ""
    job = sites.find_daemon()
    if job:
        daemon = f"job {job.job_id} is {job.state}"
    try:
        daemon = f"process {connect(str(state_dir / address.SOCKET_NAME)).status().pid}"
    except BftError as error:
        if job is None and error.exit_code == ExitCode.DAEMON_UNREACHABLE:
            return
    raise UsageError(
        "BFT-1102",
        f"You have a daemon already ({daemon or 'it does not answer'}; {state_dir}).",
        "Use it: bftrainer status. For other settings: bftrainer down, then bftrainer up.",
        exit_code=ExitCode.ALREADY_RUNNING,
    )


def _print(site: OwnSite, settings: tuple[Chosen, ...]) -> None:
    print_lines(f"cluster {site.cluster}, partition {site.partition}")
    for sentence in site.about_preemption:
        print_lines(sentence)
    for sentence in site.unread:
        print_lines(f"warning: {sentence}", err=True)
    for setting in settings:
        print_lines(f"{setting.name} = {_value_text(setting.value)}  ({setting.why})")


def _propose_job() -> None:
    """Print why a daemon may not last on this host, if it says so; JSON is not disturbed."""
    from bftrainer.site.own.login_node import look, why_as_job  # noqa: PLC0415

    if reasons := "; ".join(why_as_job(look())):
        print_lines(
            f"warning: BFT-2129 This host may end your daemon: {reasons}. In a job it lasts: "
            "bftrainer up --as-job",
            err=True,
        )


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_value_text(part)}" for key, part in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower()


@verb(
    option("--now", "Kill the workers; write no checkpoints first."),
    JSON,
    option("--batch-system", default="slurm", show_default=False, hidden=True),
    SOCKET,
    example="bftrainer down",
)
def down(socket_name: str | None, batch_system: str, *, now: bool, as_json: bool) -> int:
    """End your daemon: trainers write a checkpoint, then all nodes are released.

    Trainers that have not finished go on with the next 'bftrainer up'.
    """
    from bftrainer.site.own.plan import load  # noqa: PLC0415 - -h needs none of it

    client, sites = connect(socket_name), load(batch_system)
    job = sites.find_daemon()
    if job and job.state == "pending":
        sites.cancel_daemon(job.job_id)
        print_lines(f"The job of your daemon ({job.job_id}) was pending and is cancelled.")
        return ExitCode.OK
    unfinished = [v.record.trainer_id for v in client.trainers() if not v.record.state.is_final]
    client.shutdown("now" if now else "saved")
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            client.status()
        except BftError as error:
            if error.exit_code == ExitCode.DAEMON_UNREACHABLE:
                break
        time.sleep(TURN_S)
    else:
        raise BftError(
            "BFT-1105",
            f"The daemon still runs after {LIMIT_S:g} s.",
            "Try: bftrainer down --now",
            exit_code=ExitCode.TIMEOUT,
        )
    if as_json:
        print_json({"ended": True, "unfinished": unfinished})
        return ExitCode.OK
    sentence = "Your daemon has ended."
    if unfinished:
        sentence += f" To be continued: {', '.join(unfinished)}"
    print_lines(sentence)
    return ExitCode.OK
