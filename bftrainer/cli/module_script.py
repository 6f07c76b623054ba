"""Finds the file of a module that is to be run as by ``python -m``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from bftrainer.cli.container import text_of_spec, text_with
from bftrainer.cli.environment import ALL, NONE
from bftrainer.cli.options import option
from bftrainer.cli.preamble import read_preamble, run_under
from bftrainer.cli.spec import interpreter_of, working_directory
from bftrainer.cli.submit_options import option_defaults
from bftrainer.ground.main_module import MODULE, module_of
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec

AS_MODULE = option("-m", "SCRIPT is a module, PACKAGE.MODULE, and runs as by python -m.",
                   name="is_module")  # fmt: skip
PATHS = "PYTHONPATH"
# Imports nothing of the user's, nor from the working directory: a package that is imported may do
# anything, and take long.
_FIND = """\
import sys
sys.path[:] = [place for place in sys.path if place]
import json
module, directory = sys.argv[1:]
sys.path.insert(0, directory)

def spec_of(name, places):
    specs = (finder.find_spec(name, places) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)

def places_of(spec):
    places = spec.submodule_search_locations
    return None if places is None else list(getattr(places, "_path", places))

spec, places, name = None, None, ""
for part in module.split("."):
    if name and places is None:
        sys.exit(f"{name} is no package")
    name = f"{name}.{part}" if name else part
    spec = spec_of(name, places)
    if spec is None:
        sys.exit(f"there is no {name}")
    places = places_of(spec)
    if places is not None:  # packages without __init__ look for the one around them
        sys.modules.setdefault(name, type(sys)(name)).__path__ = places
if places is not None:
    spec = spec_of(f"{name}.__main__", places)
    if spec is None:
        sys.exit(f"{name} is a package without __main__")
if not spec.has_location or not str(spec.origin).endswith(".py"):
    sys.exit(f"{name} has no source file")
print(json.dumps(spec.origin))
"""


def file_of(module: str, values: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the file of a module, found by the interpreter that the options name.

    Raises:
        UsageError: BFT-1078, there is none.
    """
    values = {**option_defaults(), **values}
    preamble, cwd = read_preamble(values["preamble"]), working_directory(values)
    pairs = [(name, value) for name, value in values["environment"] if name not in (ALL, NONE)]
    if (ALL, "") in values["environment"] and PATHS in environ:
        pairs = [(PATHS, environ[PATHS]), *pairs]
    interpreter = interpreter_of(values, preamble, pairs, cwd, environ)
    text = text_with(preamble, values, script="/", cwd=cwd, environment=pairs)
    return _found(module, interpreter, text, pairs, cwd)


def check_module(spec: TrainerSpec) -> tuple[str, ...]:
    """Check that the trainer's script is its module in its working directory and interpreter.

    Raises:
        UsageError: BFT-1078, it is not.
    """
    module = module_of(spec.script, dict(spec.environment).get(MODULE, ""))
    if not module:
        return ()
    found = _found(module, spec.interpreter, text_of_spec(spec), spec.environment, spec.cwd)
    if found != spec.script:
        raise _refusal(module, spec.cwd, f"it would be {found} there, and not {spec.script}")
    return (f"module {module} is {found}",)


def _found(
    module: str, interpreter: str, preamble: str, variables: Iterable[tuple[str, str]], cwd: str
) -> str:
    if not all(part.isidentifier() for part in module.split(".")):
        raise _refusal(module, cwd, "that is no name of a module")
    argv = (interpreter, "-c", _FIND, module, cwd)
    completed = run_under(preamble, argv, environment=variables, cwd=cwd)
    if not completed.is_ok:
        lines = completed.stderr.strip().splitlines() or [f"exit status {completed.returncode}"]
        raise _refusal(module, cwd, lines[-1][:300])
    return str(json.loads(completed.stdout.strip().splitlines()[-1]))


def _refusal(module: str, cwd: str, why: str) -> UsageError:
    return UsageError(
        "BFT-1078",
        f"The module {module[:200]} cannot be run from {cwd}: {why}.",
        "Name it as for python -m, PACKAGE.MODULE, with --chdir DIR for the directory of its"
        " package; or give the path of a script without -m.",
    )
