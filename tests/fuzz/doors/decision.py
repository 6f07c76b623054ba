"""What users submit, up to the decision with somebody else; allocation problems from files."""

from __future__ import annotations

from bftrainer.api.documents import CodecError, decode, parse
from bftrainer.api.http_messages import MAX_BODY_BYTES
from bftrainer.model.decision import Settings
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec
from milp.check import validate
from milp.codec import canonical_json, problem_from_dict, problem_hash, problem_to_dict
from milp.problem import Problem, ProblemError
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents
from tests.support.joint import harm_of

_SPEC = {
    "name": "n", "user": "u", "script": "/s.py", "n_min": 1, "n_max": 4, "epochs": 3,
    "checkpoint_dir": "/c", "checkpoint_interval_s": 60.0, "weight": 1.0, "max_failures": 3,
    "curve": {"sizes": [1, 2, 4], "samples_per_s": [100.0, 190.0, 350.0]},
    "utility": {"sizes": [1, 4], "samples_per_s": [0.0, 3.0]},
    "environment": [["A", "1"]], "args": ["--x"],
    "contract": {"launch": "every", "grace_s": 5.0, "saved_status": 85},
}  # fmt: skip
_PROBLEM = {
    "nodes": [
        {"name": "n1", "eligibility": "a", "gpus": 1, "expected_remaining_s": 60.0},
        {"name": "n2", "eligibility": "b", "has_pilot": True},
        {"name": "n3"},
    ],
    "trainers": [
        {"trainer_id": "t1", "n_min": 1, "n_max": 2, "rescale_up_s": 1.0, "rescale_down_s": 0.5,
         "curve": {"sizes": [1, 2], "samples_per_s": [10.0, 19.0]}, "current": ["n1"],
         "settled": ["n1"], "eligible": ["a", "b"], "weight": 2.0, "warm_up_s": 3.0},
        {"trainer_id": "t2", "n_min": 1, "n_max": 3, "rescale_up_s": 1.0, "rescale_down_s": 0.5,
         "curve": {"sizes": [2], "samples_per_s": [9.0]}},
    ],
    "t_fwd_s": 120.0, "p_jmax": 2, "objective": "throughput",
}  # fmt: skip


def _submit(raw: bytes) -> None:
    """Refuse it, or see that an innocent trainer has what it would have without it."""
    if len(raw) > MAX_BODY_BYTES:
        return  # not even read
    harm = harm_of(
        decode(TrainerSpec, parse(raw), where="spec"), Settings(reserve_nodes_per_type=0)
    )
    if harm:
        raise AssertionError(harm)


def _problem(raw: bytes) -> Problem:
    """Read a problem that can be written again, and is the same then."""
    problem = problem_from_dict(parse(raw))
    validate(problem)
    again = problem_from_dict(parse(canonical_json(problem_to_dict(problem)).encode()))
    if problem_hash(again) != problem_hash(problem):
        raise AssertionError("another problem when it is read again")
    return problem


DOORS = (
    Door(
        name="submission",
        call=_submit,
        refuses_with=(CodecError, UsageError),
        inputs=documents(_SPEC).map(as_json) | bytestrings(as_json(_SPEC)),
        from_bytes=bytes,
    ),
    Door(
        name="milp-problem",
        call=_problem,
        refuses_with=(CodecError, ProblemError),
        inputs=documents(_PROBLEM).map(as_json) | bytestrings(as_json(_PROBLEM)),
        from_bytes=bytes,
    ),
)
