"""Tells of the GPUs that this node's workers have: how busy they are, and their memory.

Asks the driver's own tool once in a while, in a thread and with a limit: a driver may hang. Without
a tool, or a GPU, it is asked once and nothing is said; so is one that stops answering, once the
daemon has heard that nothing is told any more. Owned by ``trainers.agent.main``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from bftrainer.batch import process
from bftrainer.fleet.wire.messages import WorkerSaid
from bftrainer.ground import protocol
from bftrainer.ground.protocol import TELLS_GPUS, GpusInUse, WorkerConfig
from trainers.agent.gpu_tools import TOOLS, GpuTool, SeenGpu, own
from trainers.agent.team import Team, listed_devices

LOG = logging.getLogger("bftrainer.agent")
LOOK_S: Final = 1.0  # until there are workers
ASK_EVERY_S: Final = 10.0
ANSWER_S: Final = 5.0  # a tool that takes longer is killed, ...
GONE_S: Final = 10.0  # ... and left alone if it cannot be
MOST_FAILURES: Final = 3  # in a row, of a tool that has answered
MOST_BYTES: Final = 1024 * 1024  # of an answer


def devices_of(
    configs: Iterable[WorkerConfig], environ: Mapping[str, str], gpus: int
) -> Mapping[str, tuple[str, ...]]:
    """Return the devices that workers of a team see, by the variable that lists them.

    A variable that is left out lists all devices of the node.

    Args:
        configs: of the workers.
        environ: the agent's, which they inherit.
        gpus: of the pilot, as the batch system counts them. If it neither counts nor lists any,
            those of the node may be another job's.
    """
    environments = [{**environ, **dict(config.environment)} for config in configs]
    devices: dict[str, tuple[str, ...]] = {}
    variables = {tool.variable for tool in TOOLS}
    for variable in variables:
        if environments and all(variable in environment for environment in environments):
            values = [environment[variable] for environment in environments]
            devices[variable] = tuple(itertools.chain(*map(listed_devices, values)))
    if devices or gpus:
        return devices
    return dict.fromkeys(variables, ())


def is_told(config: WorkerConfig) -> bool:
    """Return whether the daemon of a worker understands what is told of its GPUs."""
    return TELLS_GPUS in dict(config.environment)


class GpuWatch:
    """Asks, and reports for each team."""

    def __init__(
        self, teams: Callable[[], Collection[Team]], report: Callable[[WorkerSaid], None]
    ) -> None:
        self._teams, self._report = teams, report
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask, again and again, once there are workers."""
        loop = asyncio.get_running_loop()
        if self._listeners():
            self._task = loop.create_task(self._watch())
        else:
            loop.call_later(LOOK_S, self.start)

    async def _watch(self) -> None:
        try:
            for tool in TOOLS:
                if await self._ask(tool):
                    await self._ask_on(tool)
                    return
        except Exception:
            LOG.exception("GPUs are not watched any more")

    async def _ask_on(self, tool: GpuTool) -> None:
        failures = 0
        while failures < MOST_FAILURES:
            await asyncio.sleep(ASK_EVERY_S)
            if self._listeners():
                failures = 0 if await self._ask(tool) else failures + 1
        for team in self._listeners():
            self._tell(team, ())

    def _listeners(self) -> list[Team]:
        return [team for team in self._teams() if team.tells_gpus]

    async def _ask(self, tool: GpuTool) -> bool:
        """Ask for all GPUs of the node and tell each team its own; return whether there are any."""
        try:
            # Not even SIGKILL ends a process that waits for a broken device.
            all_gpus = await asyncio.wait_for(asyncio.to_thread(answer_of, tool), ANSWER_S + GONE_S)
        except TimeoutError:
            return False
        for team in self._listeners():
            gpus = own(all_gpus, team.devices.get(tool.variable))
            if gpus:
                self._tell(team, gpus)
        return bool(all_gpus)

    def _tell(self, team: Team, gpus: Collection[SeenGpu]) -> None:
        report = GpusInUse(gpus=tuple(gpu.figures for gpu in gpus))
        self._report(WorkerSaid(worker_id=team.worker_id, body=protocol.to_body(report)))


def answer_of(tool: GpuTool) -> tuple[SeenGpu, ...]:
    """Ask a tool; blocks. () if there is none, or no GPU, or no answer that can be read."""
    program = shutil.which(tool.program)
    if program is None:
        return ()
    answer = process.run(
        (program, *tool.arguments),
        timeout_s=ANSWER_S,
        env={**os.environ, "LC_ALL": "C"},
        output_cap_bytes=MOST_BYTES,
    )
    if not answer.is_ok:
        return ()
    try:
        return tool.read(answer.stdout)
    except (ValueError, RecursionError):
        return ()
