"""Files for ``--curve``: throughput by size, and from how many nodes on a trainer fits."""

from __future__ import annotations

from typing import Any, NamedTuple

from bftrainer.api.admission import check_curve
from bftrainer.api.documents import CodecError, decode, parse
from bftrainer.cli.output import print_lines
from bftrainer.cli.sizes import AskedSizes
from bftrainer.ground.regular_file import read_file
from bftrainer.model.errors import UsageError
from bftrainer.model.size_words import units
from milp.problem import Curve

MAX_CURVE_BYTES = 1024 * 1024


class CurveFile(NamedTuple):
    """What a file for ``--curve`` says."""

    curve: Curve
    fits_from: int = 1  # nodes; on fewer a worker has too little memory
    workers_per_node: int = 1  # for which that was found


def read_curve(path: str) -> Curve:
    """Return the curve of a file for ``--curve``; raise BFT-1015 as ``read_curve_file``."""
    return read_curve_file(path).curve


def read_curve_file(path: str) -> CurveFile:
    """Read ``{"sizes": [...], "samples_per_s": [...]}`` and what ``profile`` adds.

    Raises:
        UsageError: BFT-1015 saying what is wrong with the file.
    """
    example = 'Write {"sizes": [1, 2, 4], "samples_per_s": [100, 190, 350]}, or use auto.'
    try:
        body = parse(read_file(path, MAX_CURVE_BYTES, is_typed=True))
        extras = _take_extras(body)
        curve = decode(Curve, body)
        check_curve(curve)
    except OSError as problem:
        cause = f"The curve {path} cannot be read: {problem.strerror}."
        raise UsageError("BFT-1015", cause, example) from problem
    except CodecError as problem:
        raise UsageError("BFT-1015", f"The curve {path}: {problem}.", example) from problem
    except ValueError as problem:  # a NUL in the path
        raise UsageError("BFT-1015", f"The curve cannot be read: {problem}.", example) from problem
    return CurveFile(curve, **extras)


def _take_extras(body: Any) -> dict[str, int]:
    """Take out what is not of the curve itself."""
    extras = dict[str, int]()
    if not isinstance(body, dict):
        return extras  # decoding says what is wrong with it
    for name in CurveFile._fields[1:]:
        if name in body:
            value = extras[name] = body.pop(name)
            if type(value) is not int or value < 1:
                raise CodecError(name, "must be a whole number from 1")
    return extras


def fitting_curve(path: str, asked: AskedSizes, per_node: int) -> Curve:
    """Read the curve for these sizes, and workers of a node or of GPUs of one.

    Raises:
        UsageError: BFT-1015; BFT-1068, a worker has too little memory at the smallest size.
    """
    file = read_curve_file(path)
    least = file.fits_from
    n_min, n_max, only = asked.sizes
    if n_min >= least:
        return file.curve
    each, option = units(asked.gpus_per_unit), "--nodes"
    if asked.gpus_per_unit == 1:
        option = "--gpus"
    if per_node != file.workers_per_node:
        says = f"{path} is of {file.workers_per_node} workers per node, not of {per_node}"
        print_lines(f"warning: {says}: how many {each} it needs is not known", err=True)
        return file.curve
    fault = f"It does not fit on {n_min} {each}"
    fitting = [str(size) for size in only if size >= least]
    if n_max < least:
        fault = "No size that is allowed fits"
        sizes = f"{least}:{2 * least}, or shard it over more --workers-per-node"
    elif fitting:
        sizes = f"{','.join(fitting)}"
    else:
        sizes = f"{least}:{n_max}"
    raise UsageError(
        "BFT-1068",
        f"{fault}: a worker has enough memory from {least} {each} on, says {path}.",
        f"Write {option} {sizes}.",
    )
