"""Problems and allocations as JSON and back, and the hash that names a problem.

Replays and the command line read and write them. The canonical form has sorted keys, no spaces
and floats that come back as the same float.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

from milp.plain import Fault, Form, FormError, codec
from milp.problem import Allocation, Problem, ProblemError

_T = TypeVar("_T")
_FORM: Final = Form(max_int=2**63 - 1, omits_added=True)  # what an array of whole numbers can hold
_CODES: Final = {
    Fault.TYPE: ("BFT-3030", "Correct this field."),
    Fault.UNKNOWN: ("BFT-3031", "Remove or rename it."),
    Fault.MISSING: ("BFT-3032", "Add it."),
    Fault.CHOICE: ("BFT-3033", "Choose one of these."),
    Fault.RANGE: ("BFT-3034", "Give a smaller number."),
}


def problem_to_dict(problem: Problem) -> dict[str, Any]:
    """Every field of the problem, JSON-able, in the one form that is hashed."""
    return cast("dict[str, Any]", codec(Problem, _FORM).encode(problem))


def allocation_to_dict(allocation: Allocation) -> dict[str, Any]:
    """Every field of the allocation, JSON-able."""
    return cast("dict[str, Any]", codec(Allocation, _FORM).encode(allocation))


def problem_from_dict(data: Any) -> Problem:
    """Read a problem; an unknown, missing or mistyped field is named in the error."""
    return _read(Problem, data, "problem")


def allocation_from_dict(data: Any) -> Allocation:
    """Read an allocation; an unknown, missing or mistyped field is named in the error."""
    return _read(Allocation, data, "allocation")


def canonical_json(data: Mapping[str, Any]) -> str:
    """One text per value: sorted keys, no spaces, shortest float that reads back."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def problem_hash(problem: Problem) -> str:
    """SHA-256 of the canonical JSON: equal exactly for equal problems."""
    return hashlib.sha256(canonical_json(problem_to_dict(problem)).encode()).hexdigest()


def _read(cls: type[_T], data: Any, where: str) -> _T:
    try:
        return cast("_T", codec(cls, _FORM).decode(data))
    except FormError as problem:
        code, next_step = _CODES[problem.fault]
        raise ProblemError(code, f"{problem.under(where)}.", next_step) from problem
