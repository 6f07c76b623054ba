"""``bftrainer daemon``: run the sidecar on a login node, in the foreground."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.api.address import SOCKET_NAME
from bftrainer.batch.process import forbid_core_files
from bftrainer.cli.next_commands import print_next
from bftrainer.cli.options import FILE, PATH, option, verb
from bftrainer.cli.output import is_terminal, print_lines
from bftrainer.fleet.background import ready_threads
from bftrainer.ground.collector import collect_rarely
from bftrainer.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bftrainer.batch.batch_system import BatchSystem
    from bftrainer.daemon.daemon import Daemon
    from bftrainer.daemon.options import DaemonOptions
    from bftrainer.site.policy.model import SitePolicy

OTHER_THREADS = 4  # for reloads and what users changed; each batch command has a pool of its own


def default_state_dir() -> Path:
    """Return ``$BFTRAINER_STATE_DIR``, else a directory in the user's home."""
    return Path(os.environ.get("BFTRAINER_STATE_DIR") or Path.home() / ".bftrainer")


def parse_options(pairs: tuple[str, ...]) -> dict[str, str]:
    """Turn ``KEY=VALUE`` arguments into a dict; BFT-1010 for anything else."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(
                "BFT-1010",
                f"{pair!r} is not of the form KEY=VALUE.",
                "Write for example: --batch-option socket=/run/local.sock",
            )
        options[key] = value
    return options


def print_next_of_daemon(state_dir: Path, socket_name: Path | None) -> None:
    """Print what is usually typed, in another terminal, when a daemon has started.

    ``socket_name``: where users reach it; None: in the state directory.
    """
    socket = socket_name or state_dir / SOCKET_NAME
    is_usual = socket == Path.home() / ".bftrainer" / SOCKET_NAME
    print_lines("The daemon serves. Ctrl-C ends it alone; trainers go on with the next.", err=True)
    print_next(
        ("bftrainer status", "in another terminal: what it sees"),
        ("bftrainer submit train.py", "hand a script to it"),
        ("bftrainer drain --all", "give all nodes back"),
        socket_name=None if is_usual else str(socket),
    )


def _tell(sidecar: Daemon, policy: SitePolicy, options: DaemonOptions) -> None:
    """Tell who waits for it that the daemon serves."""
    sidecar.manager.ready(policy)
    if is_terminal(sys.stderr):  # not in the log of a service
        print_next_of_daemon(options.state_dir, options.socket)


@verb(
    option("--state-dir", "Journal, keys and socket; on a local disk. [default: "
           "$BFTRAINER_STATE_DIR]", click.Path(file_okay=False, path_type=Path)),
    option("--socket", "Where users reach the daemon.  [default: daemon.sock in the state "
           "directory]", FILE, name="socket_name"),
    option("--policy PATH", "Policy YAML, or a directory of such files; of several the later "
           "counts.", PATH, name="policy_paths", multiple=True),
    option("--batch-system", "slurm, lsf, local, or that of a plug-in.", default="slurm"),
    option("--batch-option KEY=VALUE", "Comes before the policy's batch_options.", name="pairs",
           multiple=True),
    option("--bind", "Address to listen on.  [default: all of this host; loopback where nodes are "
           "no others]", default="", name="bind_host"),
    option("--announce ADDRESS", "Address or name where agents reach the daemon, if it is none of "
           "its host or not to be found out (NAT, two networks); several: the first that answers.",
           multiple=True),
    option("--agent-address", "Data-plane address of agents, when not their own.", default=""),
    option("--journal", "Database URL instead of SQLite.", default="", name="journal_url"),
    option("--shared-state", "Allow a state directory that other hosts see (bftrainer up)."),
    option("--log-file FILE", "Where the log goes.  [default: standard error]", FILE),
    option("--accept-loss ENTRY", "Start although the journal has lost entries, up to this one "
           "(see BFT-2213).", click.IntRange(min=1)),
    name="daemon",
    example="bftrainer daemon --policy /etc/bftrainer/policy.yaml",
)  # fmt: skip
def daemon(
    state_dir: Path | None,
    socket_name: Path | None,
    policy_paths: tuple[Path, ...],
    batch_system: str,
    pairs: tuple[str, ...],
    bind_host: str,
    announce: tuple[str, ...],
    agent_address: str,
    journal_url: str,
    log_file: Path | None,
    accept_loss: int | None,
    *,
    shared_state: bool,
) -> None:
    """Watch the batch system, decide and act until told to stop.

    SIGHUP reads the policy again. SIGTERM stops the daemon only: trainers and pilots go on, and
    the next daemon with the same state directory takes them over.
    """
    from bftrainer.batch.batch_system import load_batch_system  # noqa: PLC0415 - all are slow
    from bftrainer.daemon.options import DaemonOptions  # noqa: PLC0415
    from bftrainer.fleet.logs import configure_logging  # noqa: PLC0415
    from bftrainer.fleet.wire.listener import choose_place  # noqa: PLC0415
    from bftrainer.site.policy.load import load_policy_files  # noqa: PLC0415
    from bftrainer.site.submit.client import check_run_as  # noqa: PLC0415

    typed_options = parse_options(pairs)  # they count more than those of the policy
    paths = [path.absolute() for path in policy_paths]
    read = partial(load_policy_files, paths, batch_system=batch_system, batch_options=typed_options)
    policy = read().policy
    configure_logging(policy.log_level, log_file)
    forbid_core_files()  # of one's own daemon, too, for which no unit has LimitCORE=0
    faulthandler.enable()  # systemd's watchdog sends SIGABRT: the log says where each thread was
    system = load_batch_system(batch_system, {**policy.batch_options, **typed_options})
    check_run_as(policy, system, is_own=shared_state)
    place = choose_place(system, bind_host, announce, policy.control_network or "")
    options = DaemonOptions(
        state_dir=(state_dir or default_state_dir()).absolute(),
        socket=socket_name.absolute() if socket_name else None,
        bind_host=place.bind_host,
        offered=place.offered,
        agent_address=agent_address,
        journal_url=journal_url,
        accepted_loss=accept_loss,
        may_be_shared=shared_state,
        policy_files=tuple(map(str, paths)),
        batch_pairs=pairs,
    )

    reread = (lambda: read().policy) if paths else None
    collect_rarely()
    asyncio.run(_serve(options, policy, system, reread))


async def _serve(
    options: DaemonOptions,
    policy: SitePolicy,
    system: BatchSystem,
    reread: Callable[[], SitePolicy] | None,
) -> None:
    """Run a daemon until a signal ends it."""
    from bftrainer.daemon.daemon import Daemon  # noqa: PLC0415 - slow
    from bftrainer.daemon.service import DaemonService  # noqa: PLC0415

    sidecar = Daemon(options, policy, system, serve=DaemonService, reread=reread)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ready_threads(OTHER_THREADS, "other"))
    loop.add_signal_handler(signal.SIGHUP, sidecar.reloading.on_signal)
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, sidecar.stop)
    await sidecar.run(on_ready=partial(_tell, sidecar, policy, options))
