"""``bftrainer agent``: run the agent of a pilot, as the daemon's batch scripts do."""

from __future__ import annotations

from pathlib import Path

from bftrainer.batch.process import forbid_core_files
from bftrainer.cli.options import FILE, option, verb


@verb(
    option("--config", "agent.json in the pilot's directory, written by the daemon.", FILE,
           required=True),
    name="agent",
    example="bftrainer agent --config agent.json",
)  # fmt: skip
def agent(config: Path) -> None:
    """Hold this node for the daemon and run its workers.

    Exits at once, with status 0, on SIGTERM, SIGINT, SIGHUP, SIGUSR1 or SIGUSR2, when the daemon
    orders it or is away longer than the lease, and before the time limit.
    """
    from trainers.agent.signals import SignalWaiter  # noqa: PLC0415 - only this verb needs it

    waiter = SignalWaiter()
    waiter.start()  # before the slow imports: no signal may be lost
    forbid_core_files()
    from trainers.agent.main import run_agent  # noqa: PLC0415

    run_agent(config, waiter)
