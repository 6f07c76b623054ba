"""Checks on this machine before a trainer is submitted: files, Python, directories.

Returns a sentence per passed check, or raises the first ``UsageError``. Called by ``submit``, also
for ``--dry-run``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import bftrainer
from bftrainer.cli.spec import COMMAND, TIMEOUT_S, run_under
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec
from bftrainer.study import checkpoint_files

# The package that a runtime's workers import, and a program that prints its version.
_PROBES = {
    "torch": ("torch", "import torch; print(torch.__version__)"),
    "horovod": ("Horovod", "import horovod, horovod.torch; print(horovod.__version__)"),
}
_NOTHING = ("/bin/sh", "-c", ":")
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


def check_script(script: str) -> str:
    """Refuse a script that is missing, unreadable or not a regular file (BFT-1001)."""
    try:
        info = os.stat(script)  # noqa: PTH116 - the path may be any string
        if not stat.S_ISREG(info.st_mode):
            raise _script_refusal(script, "is not a regular file")
        with open(script, "rb"):  # noqa: PTH123
            pass
    except OSError as problem:
        raise _script_refusal(script, f"cannot be read ({problem.strerror})") from problem
    except ValueError as problem:  # a NUL in the path
        raise _script_refusal(script, f"cannot be read ({problem})") from problem
    return f"script {script} is readable"


def _script_refusal(script: str, reason: str) -> UsageError:
    return UsageError(
        "BFT-1001", f"The script {script} {reason}.", "Give the path of a Python script."
    )


def check_here(spec: TrainerSpec) -> tuple[str, ...]:
    """Check everything that a spec refers to on this machine; change nothing."""
    return (
        check_script(spec.script) if spec.interpreter else _check_program(spec.script),
        _check_cwd(spec.cwd),
        _check_runtime(spec),
        _check_interpreter(spec),
        *_check_syntax(spec),
        _check_checkpoint_dir(Path(spec.checkpoint_dir)),
    )


def _check_cwd(cwd: str) -> str:
    if not Path(cwd).is_dir() or not os.access(cwd, os.X_OK):
        raise UsageError(
            "BFT-1013",
            f"The working directory {cwd} does not exist or may not be entered.",
            "Name another one with --chdir.",
        )
    return f"working directory {cwd} exists"


def _check_runtime(spec: TrainerSpec) -> str:
    from bftrainer.fleet.runtimes.base import load_runtime  # noqa: PLC0415 - heavy; -h needs none of it

    load_runtime(spec.runtime).check(spec)
    return f"runtime {spec.runtime} accepts it"


def _check_program(program: str) -> str:
    check_script(program)
    if not os.access(program, os.X_OK):
        raise UsageError(
            "BFT-1001",
            f"The program {program} may not be executed.",
            "Make it executable, or name its interpreter with --interpreter.",
        )
    return f"program {program} can be run"


def _check_interpreter(spec: TrainerSpec) -> str:
    advice = "Name the Python that has your packages with --interpreter or --venv."
    if spec.preamble and spec.runtime not in _PROBES:
        run_under(spec.preamble, _NOTHING, environment=spec.environment, cwd=spec.cwd)
    if not spec.interpreter:
        return "no interpreter is needed"
    path = Path(spec.interpreter)
    # Under a preamble it may be in a container.
    if not spec.preamble and not (path.is_file() and os.access(path, os.X_OK)):
        cause = f"The interpreter {path} does not exist or cannot be run."
        raise UsageError("BFT-1006", cause, advice)
    if spec.runtime not in _PROBES:
        return f"interpreter {path} can be run"
    package, probe = _PROBES[spec.runtime]
    if spec.preamble:
        probe = _NOT_HERE + _SEES_US + probe
    under = " under the preamble" if spec.preamble else ""
    argv = (str(path), "-c", probe)
    done = run_under(spec.preamble, argv, environment=spec.environment, cwd=spec.cwd)
    if done.timed_out:
        cause = f"{path} did not import {package}{under} within {TIMEOUT_S:g} s."
        raise UsageError("BFT-1006", cause, advice)
    if not done.is_ok:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if str(TEMPLATE) in last:
            advice = f"Mount {TEMPLATE.parents[1]} into the container, at the same place."
        raise UsageError("BFT-1006", f"{path} cannot import {package}{under}: {last[:300]}", advice)
    version = (done.stdout.split() or ["of unknown version"])[-1]
    return f"interpreter {path} imports {package} {version[:60]}{under}"


def _check_syntax(spec: TrainerSpec) -> tuple[str, ...]:
    """Compile the script with the interpreter that will run it.

    Not for runtime ``command``, whose program may be in any language.
    """
    if not spec.interpreter or spec.runtime == COMMAND:
        return ()
    argv = (spec.interpreter, "-I", "-S", "-c", _COMPILE, spec.script)
    done = run_under(spec.preamble, argv, environment=spec.environment, cwd=spec.cwd)
    if not done.is_ok:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UsageError(
            "BFT-1035",
            f"{spec.interpreter} cannot compile the script {spec.script}: {last[:300]}",
            "Correct the script, or name the Python it is written for with --interpreter.",
        )
    return (f"script {spec.script} compiles",)


def _check_checkpoint_dir(path: Path) -> str:
    if path.is_dir():
        _refuse_unwritable(path, path)
        return f"checkpoint directory {path} is writable"
    above = path
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        raise checkpoint_files.refusal(path, f"{above} is not a directory")
    _refuse_unwritable(path, above)
    return f"checkpoint directory {path} can be created"


def _refuse_unwritable(path: Path, existing: Path) -> None:
    if not os.access(existing, os.W_OK | os.X_OK):
        raise checkpoint_files.refusal(path, f"{existing} is not writable")
