"""Records the rescales of a trainer, so that ``bftrainer replay`` can repeat them. No I/O.

A record holds a machine's state and the stimuli since then, each with a digest of the instructions
that followed. ``RescaleLog`` passes stimuli to the machine and hands out a record when a change is
complete; ``repeat`` feeds a record to a copy of its machine and yields the instructions again.
Tokens of commits are secrets, so they are neither recorded nor compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import Instruction, Tell, Worker
from bftrainer.fleet.generations.restart import RestartMachine
from bftrainer.fleet.generations.stimuli import Stimulus, TimePassed
from bftrainer.model.canonical import digest

KIND = "rescale-steps"  # of journal entries that hold a record
MIN_QUIET = 200  # stimuli without consequence before the state is copied anew
MOST_STEPS = 5_000  # of a change that does not end, in one record


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleStep:
    """A stimulus and what followed."""

    at_s: float  # monotonic clock of the daemon
    stimulus: Stimulus
    answer: str = ""  # digest of the instructions, "": none; or what the machine raised


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleRecord:
    """A change of a trainer's workers, from a known state to a settled one."""

    trainer_id: str
    machine: GenerationMachine | RestartMachine  # before the first step; not to be modified
    workers: tuple[str, ...]  # the machine's, in its order, which JSON does not keep
    steps: tuple[RescaleStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A step of a record, taken again."""

    step: RescaleStep
    instructions: tuple[Instruction, ...]
    answer: str  # as in ``RescaleStep``

    @property
    def is_equal(self) -> bool:
        """Return whether the recorded answer was the same."""
        return self.step.answer == self.answer


class RescaleLog:
    """Passes stimuli to one machine and records them."""

    def __init__(
        self,
        machine: GenerationMachine,
        write: Callable[[RescaleRecord], object],
        most_steps: int = MOST_STEPS,
    ) -> None:
        self.machine, self._write, self._most_steps = machine, write, most_steps
        self.n_stimuli = 0  # that may have changed the machine
        self.restart()

    def restart(self) -> None:
        """Begin with the machine's present state: it was changed other than by a stimulus."""
        self.n_stimuli += 1
        self._before: GenerationMachine | None = None  # copied when a step is taken: most wait
        self._steps: list[RescaleStep] = []
        self._has_answers = False

    def handle(self, stimulus: Stimulus, now_s: float) -> list[Instruction]:
        """Return the machine's instructions; write a record if they complete a change."""
        self.n_stimuli += 1
        before = self._before = self._before or copied(self.machine)
        try:
            out = self.machine.handle(stimulus, now_s)
        except Exception as problem:  # a defect: the record lets it be repeated
            step = RescaleStep(at_s=now_s, stimulus=stimulus, answer=_raised(problem))
            self._steps.append(step)
            self._finish(before)
            raise
        answer = answer_of(out)
        self._steps.append(RescaleStep(at_s=now_s, stimulus=stimulus, answer=answer))
        self._has_answers |= bool(answer)
        if self._has_answers:
            if self.machine.is_settled or len(self._steps) >= self._most_steps:
                self._finish(before)
        elif len(self._steps) >= max(MIN_QUIET, 4 * len(self.machine.crew.workers)):
            self.restart()
        return out

    def _finish(self, before: GenerationMachine) -> None:
        self._write(
            RescaleRecord(
                trainer_id=self.machine.identity.trainer_id,
                machine=before,
                workers=tuple(before.crew.workers),
                steps=tuple(self._steps),
            )
        )
        self.restart()


def repeat(record: RescaleRecord) -> Iterator[Repeated]:
    """Take the steps of a record again, in order, until the machine raises an exception."""
    machine = copied(record.machine)
    workers = machine.crew.workers
    machine.crew.workers = {worker_id: workers[worker_id] for worker_id in record.workers}
    for step in record.steps:
        try:
            out = machine.handle(step.stimulus, step.at_s)
        except Exception as problem:  # noqa: BLE001 - what is shown is that it happens again
            yield Repeated(step=step, instructions=(), answer=_raised(problem))
            return
        yield Repeated(step=step, instructions=tuple(out), answer=answer_of(out))


def timeline(repeated: Sequence[Repeated]) -> list[str]:
    """Describe the steps that had consequences or a cause, one line each; seconds from the first.

    Time limits that were not over are left out.
    """
    lines: list[str] = []
    if not repeated:
        return lines
    first_s = repeated[0].step.at_s
    for again in repeated:
        step = again.step
        if not again.answer and isinstance(step.stimulus, TimePassed):
            continue
        mark = "" if again.is_equal else "  DIFFERS"
        lines.append(f"{step.at_s - first_s:9.3f}  {step.stimulus}{mark}")
        lines += [f"{'':11}-> {_shown(instruction)}" for instruction in again.instructions]
        if again.answer and not again.instructions:  # the machine raised an exception
            lines.append(f"{'':11}-> {again.answer}")
    return lines


def answer_of(instructions: Sequence[Instruction]) -> str:
    """Return a short digest of instructions, without tokens; "": there are none."""
    if not instructions:
        return ""
    bodies: dict[int, str] = {}  # a commit is one body for all workers
    parts: list[object] = []
    for instruction in instructions:
        if isinstance(instruction, Tell):
            body = bodies.get(id(instruction.body)) or digest(_masked(instruction).body)
            bodies[id(instruction.body)] = body
            parts.append((instruction.pilot_id, instruction.worker_id, body))
        else:
            parts.append(instruction)
    return digest(parts)[:16]


def copied(machine: GenerationMachine) -> GenerationMachine:
    """Return an independent copy of a machine, without its secret and workers of the past."""
    present = {*machine.crew.members, *machine.forming_roster}
    workers: dict[str, Worker] = {}
    for worker_id, worker in machine.crew.workers.items():
        if worker.is_alive or worker.lost or worker_id in present:
            workers[worker_id] = copy(worker)
    forming, failures, stall = machine.forming, machine.failures, machine.stall
    if forming is not None:
        forming = replace(forming, waiting=set(forming.waiting), entered=set(forming.entered))
    result = replace(
        machine,
        identity=replace(machine.identity, commit_key=""),
        patience=copy(machine.patience),
        numbers=copy(machine.numbers),
        plan=replace(
            machine.plan, targets=dict(machine.plan.targets), staying=dict(machine.plan.staying)
        ),
        crew=replace(machine.crew, workers=workers),
        checkpoints=copy(machine.checkpoints),
        course=copy(machine.course),
        trouble=copy(machine.trouble),
        forming=forming,
        failures=replace(
            failures, on_node=dict(failures.on_node), cool_until_s=dict(failures.cool_until_s)
        ),
        stall=replace(stall, told_s=dict(stall.told_s)),
    )
    if isinstance(result, RestartMachine) and result.stopped is not None:
        result.stopped = copy(result.stopped)
    return result


def _raised(problem: Exception) -> str:
    return f"raised {type(problem).__name__}"


def _shown(instruction: Instruction) -> str:
    if isinstance(instruction, Tell):
        instruction = _masked(instruction)
    return str(instruction)


def _masked(tell: Tell) -> Tell:
    if "token" not in tell.body:
        return tell
    return replace(tell, body={**tell.body, "token": ""})
