"""The checks of a trainer on the machine where it is submitted."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

import bftrainer
from bftrainer.api import checkpoint_files
from bftrainer.batch import process
from bftrainer.cli.container import text_of_spec, why_untried
from bftrainer.cli.module_script import check_module
from bftrainer.cli.preamble import TIMEOUT_S, run_under
from bftrainer.cli.spec import COMMAND
from bftrainer.ground import versions
from bftrainer.ground.regular_file import open_stream
from bftrainer.ground.versions import TELL_PYTHON, TELL_TORCH
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec

# The package that a runtime's workers import, and a program that tells the releases and, for a
# package beside torch, prints its version.
_PROBES = {
    "torch": ("torch", TELL_TORCH),
    "horovod": (
        "Horovod",
        f"{TELL_TORCH}import horovod, horovod.torch; print(horovod.__version__)",
    ),
    "mpi": ("", ""),  # its library is looked for on the node
}
_NOTHING = ("/bin/sh", "-c", ":")
# The import of torch takes seconds, and minutes from a file system that others use, too. A torch
# that does not import is told of by the first worker, as is one that the nodes alone lack. A build
# that does not write down its version is imported to tell it.
_FIND_TORCH = (
    f"import runpy; there = runpy.run_path({versions.__file__!r})['there']()[1] or"
    " __import__('torch').__version__; sys.stdout.write('bft-torch %s\\n' % there); "
)
# ``-c`` looks for modules in the working directory, a template does not.
_NOT_HERE = "import sys; sys.path[:] = [p for p in sys.path if p]; "
# What runs in the interpreter on a node; a container may lack it.
TEMPLATE = Path(bftrainer.__file__).resolve().parent / "elastic" / "template.py"
_SEES_US = f"open({str(TEMPLATE)!r}).close(); "
# Compiles without running or writing anything; the message names the line.
_COMPILE = """\
import sys
path = sys.argv[1]
try:
    with open(path, "rb") as script:
        compile(script.read(), path, "exec", dont_inherit=True)
except SyntaxError as problem:
    sys.exit(f"{type(problem).__name__} in line {problem.lineno}: {problem.msg}")
except (ValueError, RecursionError, MemoryError, OverflowError) as problem:
    sys.exit(f"{type(problem).__name__}: {problem}")
"""
MOST_OF_SCRIPT = 1 << 14  # bytes of it that are looked at
_SHELL, _BATCH = re.compile(rb"#!.*\b(ba|da|k|z|c|tc)?sh\b"), re.compile(rb"#(SBATCH|BSUB)\b")
_OF_SHELLS = (
    "Submit the Python script that it runs, or a job script for sbatch as it is, by --from-sbatch"
    " FILE; partition and time limit go into 'bftrainer up'."
)


def check_script(script: str) -> str:
    """Refuse a script that is missing, unreadable or not a regular file (BFT-1001)."""
    try:
        open_stream(script, is_typed=True).close()
    except OSError as problem:
        raise _script_refusal(script, f"cannot be read ({problem.strerror})") from problem
    except ValueError as problem:  # a NUL in the path
        raise _script_refusal(script, f"cannot be read ({problem})") from problem
    return f"script {script} is readable"


def _script_refusal(script: str, reason: str) -> UsageError:
    return UsageError(
        "BFT-1001", f"The script {script} {reason}.", "Give the path of a Python script."
    )


def check_here(spec: TrainerSpec, *, imports_torch: bool = True) -> tuple[str, ...]:
    """Check everything that a spec refers to on this machine; change nothing.

    Args:
        spec: the trainer.
        imports_torch: to see that it can be; False: it is only looked for, in a fraction of a
            second.

    Returns:
        A sentence for each check.

    Raises:
        UsageError: the first that failed.
    """
    from bftrainer.fleet.runtimes.base import load_runtime  # noqa: PLC0415 - heavy; -h needs none of it

    if spec.container and not spec.interpreter and not os.path.lexists(spec.script):
        script = f"program {spec.script} has to be in the image"
    elif spec.interpreter:
        script = check_script(spec.script)
    else:
        script = _check_program(spec.script)
    if not os.path.isdir(spec.cwd) or not os.access(spec.cwd, os.X_OK):  # noqa: PTH112
        raise UsageError(
            "BFT-1013",
            f"The working directory {spec.cwd} does not exist or may not be entered.",
            "Name another one with --chdir.",
        )
    folder = os.path.dirname(spec.output or "")  # noqa: PTH120 - a pattern
    if folder and "%" not in folder and not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(
            "BFT-1013",
            f"The directory of --output, {folder}, does not exist or may not be written to.",
            "Make it, as for sbatch, or name another file.",
        )
    load_runtime(spec.runtime).check(spec)
    text, image = text_of_spec(spec), _check_image(spec)
    tried: tuple[str, ...] = ()
    if image.is_here:
        tried = (
            *check_module(spec),
            _check_interpreter(spec, text, imports_torch=imports_torch),
            *_check_syntax(spec, text),
        )
    return (
        script,
        f"working directory {spec.cwd} exists",
        f"runtime {spec.runtime} accepts it",
        *image.sentences,
        *tried,
        _check_checkpoint_dir(Path(spec.checkpoint_dir)),
    )


class _ImageCheck(NamedTuple):
    """The outcome of a start of the image."""

    is_here: bool  # this machine can start it, or there is none
    sentences: tuple[str, ...]


def _check_image(spec: TrainerSpec) -> _ImageCheck:
    if not spec.container:
        return _ImageCheck(is_here=True, sentences=())
    untried = why_untried(text_of_spec(spec), spec.container, spec.environment, spec.cwd)
    if untried:
        sentence = f"image {spec.container} was not tried, nor Python and script in it: {untried}"
        return _ImageCheck(is_here=False, sentences=(sentence,))
    return _ImageCheck(is_here=True, sentences=(f"image {spec.container} starts here",))


def _check_program(program: str) -> str:
    check_script(program)
    if not os.access(program, os.X_OK):
        raise UsageError(
            "BFT-1001",
            f"The program {program} may not be executed.",
            "Make it executable, or name its interpreter with --interpreter.",
        )
    return f"program {program} can be run"


def _check_interpreter(spec: TrainerSpec, text: str, *, imports_torch: bool) -> str:
    advice = "Name the Python that has your packages with --interpreter or --venv."
    if text and spec.runtime not in _PROBES:
        run_under(text, _NOTHING, environment=spec.environment, cwd=spec.cwd)
    if not spec.interpreter:
        return "no interpreter is needed"
    path = Path(spec.interpreter)
    # Under a preamble it may be in a container.
    is_there = os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113
    if not text and not is_there:
        cause = f"The interpreter {path} does not exist or cannot be run."
        raise UsageError("BFT-1006", cause, advice)
    if spec.runtime not in _PROBES:
        return f"interpreter {path} can be run"
    package, probe = _PROBES[spec.runtime]
    if probe == TELL_TORCH and not imports_torch:
        probe = _FIND_TORCH
    under, code = "", "BFT-1006"
    if text:
        probe = _NOT_HERE + _SEES_US + probe
        under = " under the preamble"
    if spec.container:
        under, code = f" in the image {spec.container}", "BFT-1084"
        advice = "Take an image that has it, or name the Python there that does with --interpreter."
    argv = (str(path), "-c", TELL_PYTHON + probe)
    completed = run_under(text, argv, environment=spec.environment, cwd=spec.cwd)
    python, torch = versions.told(completed.stdout)
    _require_release(str(path), python, torch, under)
    action = f"import {package}" if package else "start"
    if completed.timed_out:
        cause = f"{path} did not {action}{under} within {TIMEOUT_S:g} s."
        raise UsageError(code, cause, advice)
    if not completed.is_ok:
        last = _last_words(completed)
        if str(TEMPLATE) in last:
            advice = f"Mount {TEMPLATE.parents[1]} into the container, at the same place."
        raise UsageError(code, f"{path} cannot {action}{under}: {last[:300]}", advice)
    if not package:
        return f"interpreter {path} is Python {python}{under}"
    version = (completed.stdout.split() or ["of unknown version"])[-1]
    return f"interpreter {path} is Python {python}; it imports {package} {version[:60]}{under}"


def require_release(interpreter: str) -> None:
    """Refuse an interpreter on this machine whose Python or torch is too old, without importing it.

    One that cannot say what it has is accepted: whoever starts it is told why.

    Raises:
        UsageError: BFT-1006.
    """
    completed = process.run((interpreter, versions.__file__), timeout_s=TIMEOUT_S)
    python, _, torch = completed.stdout.strip().partition("\n")
    if completed.is_ok:
        _require_release(interpreter, python, torch, "")


def _require_release(interpreter: str, python: str, torch: str, under: str) -> None:
    if release := versions.too_old(python, torch):
        raise UsageError(
            "BFT-1006",
            f"{interpreter} has {release}{under}; a trainer needs {versions.supported()}.",
            "Name a newer one with --interpreter or --venv; see docs/reference/versions.md.",
        )


def _check_syntax(spec: TrainerSpec, text: str) -> tuple[str, ...]:
    """Compile the script with the interpreter that will run it.

    Not for runtime ``command``, whose program may be in any language.
    """
    if not spec.interpreter or spec.runtime == COMMAND:
        return ()
    argv = (spec.interpreter, "-I", "-S", "-c", _COMPILE, spec.script)
    completed = run_under(text, argv, environment=spec.environment, cwd=spec.cwd)
    if not completed.is_ok:
        if _is_shell_script(Path(spec.script)):
            raise UsageError("BFT-1035", f"{spec.script} is a script of a shell.", _OF_SHELLS)
        last = _last_words(completed)
        raise UsageError(
            "BFT-1035",
            f"{spec.interpreter} cannot compile the script {spec.script}: {last[:300]}",
            "Correct the script, or name the Python it is written for with --interpreter.",
        )
    return (f"script {spec.script} compiles",)


def _last_words(completed: process.Completed) -> str:
    """Return the last line that a program has printed of its failure."""
    lines = completed.stderr.strip().splitlines()
    if not lines:
        return f"exit status {completed.returncode}"
    return lines[-1]


def _is_shell_script(path: Path) -> bool:
    """Return whether the first line names a shell, or one is for sbatch or bsub."""
    with contextlib.suppress(OSError), open_stream(path, is_typed=True) as stream:
        lines = stream.read(MOST_OF_SCRIPT).splitlines() or [b""]
        return bool(_SHELL.match(lines[0])) or any(map(_BATCH.match, lines))
    return False


def _check_checkpoint_dir(path: Path) -> str:
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    if not os.path.isdir(existing):  # noqa: PTH112
        raise checkpoint_files.refusal(path, f"{existing} is not a directory")
    answer = "can be created"
    if existing == path:
        checkpoint_files.check_owner(path)
        answer = "is writable"
    if not os.access(existing, os.W_OK | os.X_OK):
        raise checkpoint_files.refusal(path, f"{existing} is not writable")
    return f"checkpoint directory {path} {answer}"
