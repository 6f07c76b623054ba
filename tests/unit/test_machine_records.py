"""Generation machines as the journal has them: what it holds of them stays as it was.

The steps in ``machine_steps_before_parts.json`` were written by the release (commit edce2513) whose
machine had forty fields of its own: a machine, its next step, and the digest of the machine after.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.rescale_log import RescaleStep, answer_of
from bftrainer.fleet.generations.restart import RestartMachine
from bftrainer.model.canonical import digest, from_plain, to_plain

RECORDED = Path(__file__).parents[1] / "fixtures/journal/machine_steps_before_parts.json"
STEPS: list[dict[str, Any]] = json.loads(RECORDED.read_text())
KINDS: dict[str, type[GenerationMachine]] = {
    "GenerationMachine": GenerationMachine,
    "RestartMachine": RestartMachine,
}


def machine_of(plain: dict[str, Any]) -> GenerationMachine:
    return from_plain(plain, KINDS[plain["type"]])


def test_a_machine_of_the_release_before_is_written_as_it_was_read() -> None:
    for recorded in STEPS:
        assert to_plain(machine_of(recorded["machine"])) == recorded["machine"]


def test_a_machine_of_the_release_before_goes_on_as_it_did() -> None:
    for recorded in STEPS:
        machine, step = machine_of(recorded["machine"]), from_plain(recorded["step"], RescaleStep)
        try:
            answer = answer_of(machine.handle(step.stimulus, step.at_s))
        except KeyError as problem:
            answer = f"raised {type(problem).__name__}"
        assert answer == step.answer
        assert digest(machine) == recorded["after"]
