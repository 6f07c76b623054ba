"""The runtime for any program that follows the contract of docs/howto/train-command.md.

Its order starts ``trainers.command`` on the node, which runs the user's program, requests
checkpoints and reports.
"""

from __future__ import annotations

import dataclasses

from bftrainer.fleet.runtimes import checks
from bftrainer.fleet.runtimes.base import Resize
from bftrainer.fleet.wire.messages import StartWorker
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.trainer import CheckpointContract, TrainerRecord, TrainerSpec

MAX_STATUS = 125  # larger ones are used by shells and for signals
MAX_GRACE_S = 3600.0


class CommandRuntime:
    """Programs that are stopped at a checkpoint and restarted at another size."""

    name = "command"
    resize = Resize.RESTART
    forks = False
    inherits = True

    def check(self, spec: TrainerSpec) -> None:
        """Refuse a spec that no agent could start or whose contract is invalid."""
        checks.check_paths(
            spec,
            program=spec.script,
            working_directory=spec.cwd,
            checkpoint_directory=spec.checkpoint_dir,
        )
        checks.check_size_and_length(spec)
        checks.check_one_per_node(spec, self.name)
        contract = spec.contract or CheckpointContract()
        for option, name in (
            ("--checkpoint-signal", contract.stop_signal),
            ("--save-signal", contract.save_signal),
        ):
            if name != checks.NO_SIGNAL and checks.signal_number(name) is None:
                raise checks.unusable(
                    f"{option} {name[:40]!r} is not a signal that a program can handle.",
                    f"Name one such as USR1, TERM or INT, or {checks.NO_SIGNAL}.",
                )
        if contract.stop_signal == contract.save_signal != checks.NO_SIGNAL:
            raise checks.unusable(
                f"--checkpoint-signal and --save-signal are both {contract.stop_signal}.",
                "Use two signals: one means 'write and end', the other 'write and go on'.",
            )
        if not 1 <= contract.saved_status <= MAX_STATUS:
            raise checks.unusable(
                f"--checkpoint-status is {contract.saved_status}.",
                f"Give an exit status from 1 to {MAX_STATUS}; 0 means finished.",
            )
        if not 0.0 < contract.grace_s <= MAX_GRACE_S:
            raise checks.unusable(
                f"--checkpoint-grace is {contract.grace_s}.",
                f"Give seconds above 0, at most {MAX_GRACE_S:g}.",
            )

    def start_message(self, record: TrainerRecord, config: WorkerConfig) -> StartWorker:
        """Return the order that starts the keeper of this node's program."""
        spec = record.spec
        contract = dataclasses.asdict(spec.contract or CheckpointContract())
        # A daemon with a new state directory would use the id again.
        run = f"{record.trainer_id}@{record.submitted_s!r}"
        return StartWorker(
            worker_id=config.worker_id,
            trainer_id=record.trainer_id,
            interpreter="",
            config=to_body(config),
            program="trainers.command",
            options={**contract, "run": run},
        )


RUNTIME = CommandRuntime()
