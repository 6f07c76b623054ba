"""Preambles of trainers, read and tried where they are submitted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bftrainer.api.admission import check_preamble
from bftrainer.batch import process
from bftrainer.ground.regular_file import read_file
from bftrainer.model.container import ENDED_EARLY
from bftrainer.model.container import NOT_STARTED as NO_RUNTIME
from bftrainer.model.errors import UsageError
from bftrainer.model.preamble import MAX_BYTES, NOT_STARTED, under, why_not_started

TIMEOUT_S: Final = 120.0  # torch on a cold parallel file system
OUTPUT_CAP_BYTES: Final = 1024 * 1024
_WHICH = 'command -v python || command -v python3 || { echo "there is no python" >&2; exit 1; }'


def read_preamble(path: str | None) -> str:
    """Return the text of the file; "" without one.

    Raises:
        UsageError: BFT-1060.
    """
    if path is None:
        return ""
    advice = "Give the path of a shell file in UTF-8 of at most 64 KiB."
    try:
        text = read_file(path, MAX_BYTES, is_typed=True).decode()
    except UnicodeDecodeError as problem:
        raise UsageError("BFT-1060", f"The preamble {path} is not UTF-8.", advice) from problem
    except (OSError, ValueError) as problem:  # a NUL in the path
        reason = getattr(problem, "strerror", None) or problem
        cause = f"The preamble {path} cannot be read: {reason}."
        raise UsageError("BFT-1060", cause, advice) from problem
    check_preamble(text)
    if not text.strip():
        raise UsageError("BFT-1060", f"The preamble {path} is empty.", advice)
    return text


def run_under(
    text: str, argv: Sequence[str], *, environment: Iterable[tuple[str, str]] = (), cwd: str
) -> process.Completed:
    """Run a command as on a node: under this preamble, in ``cwd``; without one, in /.

    Raises:
        UsageError: BFT-1061, the preamble failed.
    """
    with tempfile.NamedTemporaryFile("w", prefix="bft-preamble-", suffix=".sh") as file:
        file.write(text)
        file.flush()
        place = "/"  # a torch.py in our working directory must not be imported
        if text:
            argv = under(file.name, argv)
            if Path(cwd).is_dir():
                place = cwd
        completed = process.run(
            argv,
            timeout_s=TIMEOUT_S,
            env={**os.environ, **dict(environment)},
            cwd=Path(place),
            output_cap_bytes=OUTPUT_CAP_BYTES,
        )
        if text and completed.returncode == NOT_STARTED:
            reason = why_not_started(completed.stderr, completed.returncode, file.name)
            code, _, cause = reason.partition(": ")
            advice = "Run the file here with bash and correct it; its last command must succeed."
            if code in (NO_RUNTIME, ENDED_EARLY):
                advice = "'bftrainer help containers' has examples for each runtime."
            raise UsageError(code, f"{cause.rstrip('.')}.", advice)
    return completed


def python_under(text: str, environment: Iterable[tuple[str, str]], cwd: str) -> str:
    """Return the Python that a preamble puts first into PATH.

    Raises:
        UsageError: BFT-1006, there is none; BFT-1061.
    """
    argv = ("/bin/sh", "-c", _WHICH)
    completed = run_under(text, argv, environment=environment, cwd=cwd)
    interpreter = (completed.stdout.split() or [""])[-1]
    if not completed.is_ok or not interpreter.startswith("/"):
        raise UsageError(
            "BFT-1006",
            "There is no python in PATH under the preamble.",
            "Activate an environment in it, or name a Python with --interpreter or --venv.",
        )
    return interpreter
