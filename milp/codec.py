"""Problems and allocations as JSON and back, and the hash that names a problem.

The journal writes them, replays and the command line read them. The canonical form
has sorted keys, no spaces and floats that come back as the same float.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from milp.errors import ProblemError
from milp.problem import (
    Allocation,
    BatchCurve,
    Curve,
    Marginal,
    Objective,
    Problem,
    ProblemNode,
    ProblemTrainer,
)

_T = TypeVar("_T")
_Reader = Callable[[Any, str], Any]
LARGEST_INT = 2**63


def problem_to_dict(problem: Problem) -> dict[str, Any]:
    """Every field of the problem, JSON-able, in the one form that is hashed."""
    return {
        "nodes": [_write(node) for node in problem.nodes],
        "trainers": [_write(trainer) for trainer in problem.trainers],
        "t_fwd_s": float(problem.t_fwd_s),
        "p_jmax": problem.p_jmax,
        "objective": problem.objective.value,
    }


def allocation_to_dict(allocation: Allocation) -> dict[str, Any]:
    """Every field of the allocation, JSON-able."""
    return {
        "assignment": dict(sorted(allocation.assignment.items())),
        "objective": float(allocation.objective),
        "node_price": float(allocation.node_price),
        "marginals": {
            name: _write(allocation.marginals[name]) for name in sorted(allocation.marginals)
        },
        "solver": allocation.solver,
        "gap": float(allocation.gap),
        "batches": dict(sorted(allocation.batches.items())),
    }


def problem_from_dict(data: Any) -> Problem:
    """Read a problem; an unknown, missing or mistyped field is named in the error."""
    return _read(
        Problem,
        data,
        "problem",
        {
            "nodes": _tuple_of(_node),
            "trainers": _tuple_of(_trainer),
            "t_fwd_s": _float,
            "p_jmax": _int,
            "objective": _objective,
        },
    )


def allocation_from_dict(data: Any) -> Allocation:
    """Read an allocation; an unknown, missing or mistyped field is named in the error."""
    return _read(
        Allocation,
        data,
        "allocation",
        {
            "assignment": _mapping_of(_str),
            "objective": _float,
            "node_price": _float,
            "marginals": _mapping_of(_marginal),
            "solver": _str,
            "gap": _float,
            "batches": _mapping_of(_int),
        },
    )


def canonical_json(data: Mapping[str, Any]) -> str:
    """One text per value: sorted keys, no spaces, shortest float that reads back."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def problem_hash(problem: Problem) -> str:
    """SHA-256 of the canonical JSON: equal exactly for equal problems."""
    return hashlib.sha256(canonical_json(problem_to_dict(problem)).encode()).hexdigest()


def _write(item: ProblemNode | ProblemTrainer | BatchCurve | Marginal) -> dict[str, Any]:
    """The fields of a plain record, with ints in float fields made floats."""
    written: dict[str, Any] = {}
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if isinstance(value, Curve):
            written[field.name] = {
                "sizes": list(value.sizes),
                "samples_per_s": [float(rate) for rate in value.samples_per_s],
            }
        elif isinstance(value, tuple):
            written[field.name] = [
                _write(part) if isinstance(part, BatchCurve) else part for part in value
            ]
        elif isinstance(value, int) and "float" in str(field.type):
            written[field.name] = float(value)
        else:
            written[field.name] = value
    return written


def _refuse(where: str, expected: str, value: Any) -> ProblemError:
    return ProblemError(
        "BFT-3030", f"{where} is {type(value).__name__}, not {expected}.", "Correct this field."
    )


def _read(cls: type[_T], data: Any, where: str, readers: Mapping[str, _Reader]) -> _T:
    """Build a record from a JSON object, each field by its reader."""
    if not isinstance(data, dict):
        raise _refuse(where, "an object", data)
    unknown = sorted(set(data) - set(readers))
    if unknown:
        raise ProblemError(
            "BFT-3031", f"{where} has no field {unknown[0]!r}.", "Remove or rename it."
        )
    required = {
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]  # all are dataclasses
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    missing = sorted(required - set(data))
    if missing:
        raise ProblemError("BFT-3032", f"{where} lacks the field {missing[0]!r}.", "Add it.")
    return cls(**{name: readers[name](value, f"{where}.{name}") for name, value in data.items()})


def _str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _refuse(where, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refuse(where, "valid Unicode text", value) from None
    return value


def _in_range(value: int, where: str) -> int:
    """Refuse what neither a float nor an array of whole numbers can hold."""
    if abs(value) >= LARGEST_INT:
        raise ProblemError(
            "BFT-3034", f"{where} is beyond 2 to the 63.", "Give a smaller whole number."
        )
    return value


def _int(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(where, "a whole number", value)
    return _in_range(value, where)


def _int_or_none(value: Any, where: str) -> int | None:
    return None if value is None else _int(value, where)


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(where, "true or false", value)
    return value


def _float(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _refuse(where, "a number", value)
    return float(_in_range(value, where) if isinstance(value, int) else value)


def _float_or_none(value: Any, where: str) -> float | None:
    return None if value is None else _float(value, where)


def _objective(value: Any, where: str) -> Objective:
    names = [objective.value for objective in Objective]
    if value not in names:
        raise ProblemError(
            "BFT-3033", f"{where} is {value!r}.", f"Choose one of {', '.join(names)}."
        )
    return Objective(value)


def _tuple_of(reader: _Reader) -> _Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _refuse(where, "a list", value)
        return tuple(reader(item, f"{where}[{i}]") for i, item in enumerate(value))

    return read


def _mapping_of(reader: _Reader) -> _Reader:
    def read(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _refuse(where, "an object", value)
        return {_str(key, where): reader(item, f"{where}.{key}") for key, item in value.items()}

    return read


def _node(value: Any, where: str) -> ProblemNode:
    return _read(
        ProblemNode,
        value,
        where,
        {
            "name": _str,
            "eligibility": _str,
            "gpus": _int,
            "expected_remaining_s": _float_or_none,
            "switch": _str,
            "has_pilot": _bool,
        },
    )


def _curve(value: Any, where: str) -> Curve:
    return _read(
        Curve, value, where, {"sizes": _tuple_of(_int), "samples_per_s": _tuple_of(_float)}
    )


def _curve_or_none(value: Any, where: str) -> Curve | None:
    return None if value is None else _curve(value, where)


def _batch_curve(value: Any, where: str) -> BatchCurve:
    return _read(BatchCurve, value, where, {"global_batch": _int, "curve": _curve})


def _trainer(value: Any, where: str) -> ProblemTrainer:
    return _read(
        ProblemTrainer,
        value,
        where,
        {
            "trainer_id": _str,
            "n_min": _int,
            "n_max": _int,
            "curve": _curve,
            "rescale_up_s": _float,
            "rescale_down_s": _float,
            "current": _tuple_of(_str),
            "settled": _tuple_of(_str),
            "eligible": _tuple_of(_str),
            "weight": _float,
            "warm_up_s": _float,
            "mixes_classes": _bool,
            "utility": _curve_or_none,
            "batch_curves": _tuple_of(_batch_curve),
            "current_batch": _int_or_none,
        },
    )


def _marginal(value: Any, where: str) -> Marginal:
    return _read(
        Marginal,
        value,
        where,
        {"gain_of_one_more": _float_or_none, "loss_of_one_fewer": _float_or_none},
    )
