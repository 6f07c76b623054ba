"""Reads pickled pandas frames safely, without pandas and without executing calls.

A pickle is a program for a small stack machine that may call any function. This reader runs it on
plain data: a call becomes a ``Call`` record, a class a ``Name``; a name outside the list below is
refused. ``frames`` makes arrays of the records.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from bftrainer.simulate.traces.errors import TraceError, malformed

# What numpy and pandas (1.0 to 3.x) write for a frame of numbers, names and times.
ALLOWED_NAMES = frozenset(
    {
        "builtins.slice",
        "numpy.dtype",
        "numpy.ndarray",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.core.numeric._frombuffer",
        "numpy._core.numeric._frombuffer",
        "pandas.DataFrame",
        "pandas.Index",
        "pandas.DatetimeIndex",
        "pandas.RangeIndex",
        "pandas.StringDtype",
        "pandas.arrays.DatetimeArray",
        "pandas.arrays.StringArray",
        "pandas._libs.arrays.__pyx_unpickle_NDArrayBacked",
        "pandas._libs.internals._unpickle_block",
        "pandas.core.arrays.datetimes.DatetimeArray",
        "pandas.core.arrays.string_.StringArray",
        "pandas.core.arrays.string_.StringDtype",
        "pandas.core.frame.DataFrame",
        "pandas.core.indexes.base.Index",
        "pandas.core.indexes.base._new_Index",
        "pandas.core.indexes.datetimes.DatetimeIndex",
        "pandas.core.indexes.datetimes._new_DatetimeIndex",
        "pandas.core.indexes.numeric.Int64Index",
        "pandas.core.indexes.range.RangeIndex",
        "pandas.core.internals.managers.BlockManager",
    }
)
MAX_MEMO = 20_000_000


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function the pickle mentions, by name only."""

    dotted: str


@dataclass(slots=True, eq=False)
class Call:
    """A call the pickle asks for, and the state it would set afterwards."""

    name: str
    args: tuple[Any, ...]
    state: Any = None


@dataclass(slots=True, eq=False)
class _Machine:
    """The stack, the memo and where in the file we are."""

    path: Path
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def pop_to_mark(self) -> list[Any]:
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def pop(self) -> Any:
        # Nothing below the last mark may be taken: that would be another list's.
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise IndexError("the stack is empty")
        return self.stack.pop()


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "SHORT_BINBYTES",
        "BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
    ]
)
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING_TO_DO = frozenset({"PROTO", "FRAME"})


def read_records(path: Path, stream: BinaryIO) -> Any:
    """Return what the pickle describes, with ``Call`` and ``Name`` in place of objects.

    Raises:
        TraceError: BFT-4006, it names something that is no part of a frame; BFT-4001,
            it is no pickle.
    """
    machine = _Machine(path)
    at = 0
    try:
        for opcode, argument, position in pickletools.genops(stream):
            at = position or 0
            if opcode.name == "STOP":
                return machine.pop()
            _step(machine, opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as problem:
        raise malformed(
            path, None, f"byte {at}: this is not a pickled frame ({problem})"
        ) from problem
    except (OverflowError, MemoryError) as problem:
        raise malformed(path, None, f"byte {at}: a length in it is absurd") from problem
    raise malformed(path, None, "the pickle ends too early")


def _step(machine: _Machine, name: str, argument: Any) -> None:
    stack = machine.stack
    if name in _LITERALS:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "MARK":
        machine.marks.append(len(stack))
    elif name in {"MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}:
        _memoize(machine, len(machine.memo) if name == "MEMOIZE" else int(argument))
    elif name in {"GET", "BINGET", "LONG_BINGET"}:
        stack.append(machine.memo[int(argument)])
    elif name in {"GLOBAL", "STACK_GLOBAL"}:
        stack.append(_named(machine, name, argument))
    elif name in _TUPLES:
        items = [machine.pop() for _ in range(_TUPLES[name])]
        stack.append(tuple(reversed(items)))
    elif name == "TUPLE":
        stack.append(tuple(machine.pop_to_mark()))
    elif name in {"EMPTY_LIST", "LIST"}:
        stack.append(machine.pop_to_mark() if name == "LIST" else [])
    elif name in {"EMPTY_DICT", "DICT"}:
        stack.append(_dict(machine.pop_to_mark()) if name == "DICT" else {})
    else:
        _change(machine, name)


def _change(machine: _Machine, name: str) -> None:
    """Operations on what lies below on the stack."""
    if name in _NOTHING_TO_DO:
        return
    if name == "POP":
        machine.pop()
    elif name in {"APPEND", "APPENDS"}:
        items = machine.pop_to_mark() if name == "APPENDS" else [machine.pop()]
        _top(machine, list).extend(items)
    elif name in {"SETITEM", "SETITEMS"}:
        if name == "SETITEMS":
            items = machine.pop_to_mark()
        else:
            value, key = machine.pop(), machine.pop()
            items = [key, value]
        _top(machine, dict).update(_dict(items))
    elif name in {"REDUCE", "NEWOBJ"}:
        arguments, called = machine.pop(), machine.pop()
        if not isinstance(called, Name) or not isinstance(arguments, tuple):
            raise ValueError("it calls what is not named")
        machine.stack.append(Call(called.dotted, arguments))
    elif name == "BUILD":
        state = machine.pop()
        _top(machine, Call).state = state
    else:
        raise ValueError(f"opcode {name} does not occur in frames")


def _memoize(machine: _Machine, index: int) -> None:
    if len(machine.memo) >= MAX_MEMO:
        raise ValueError("too many objects")
    value = machine.pop()
    machine.stack.append(value)
    machine.memo[index] = value


def _named(machine: _Machine, opcode: str, argument: Any) -> Name:
    if opcode == "GLOBAL":
        dotted = str(argument).replace(" ", ".", 1)
    else:
        attribute, module = machine.pop(), machine.pop()
        if not isinstance(attribute, str) or not isinstance(module, str):
            raise TypeError("a name is not a text")
        dotted = f"{module}.{attribute}"
    if dotted not in ALLOWED_NAMES:
        raise TraceError(
            "BFT-4006",
            f"{machine.path.name}: the pickle wants {dotted[:100]!r}, which no table of idle "
            "nodes needs.",
            "Nothing of it was run. Use it only if you know where it is from; export it as csv.",
        )
    return Name(dotted)


def _top(machine: _Machine, kind: type[Any]) -> Any:
    top = machine.pop()
    machine.stack.append(top)
    if not isinstance(top, kind):
        raise TypeError(f"a {kind.__name__} is missing")
    return top


def _dict(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2 or not all(isinstance(key, str | int) for key in items[::2]):
        raise ValueError("a key is not a text")
    return dict(zip(items[::2], items[1::2], strict=True))
