"""Runs a user's script as Python does: a file, or a module as by ``python -m``.

A trainer's ``script`` is a file in either case. ``$BFT_MODULE`` names the module that it is; for
any other file that is run in between, as a bootstrap, it means nothing. Standard library only.
"""

from __future__ import annotations

import os
import runpy

MODULE = "BFT_MODULE"  # "package.module=/its/file.py"


def described(module: str, file: str) -> tuple[str, str]:
    """Return the variable that says so."""
    return MODULE, f"{module}={file}"


def module_of(script: str, text: str) -> str:
    """Return the module that a script is by the variable's value; "": it is a plain file."""
    module, _, file = text.partition("=")
    is_ours = bool(file) and file == script
    return module if is_ours else ""


def first_path(script: str) -> str:
    """Return what Python puts first into ``sys.path``: of a module, the working directory."""
    if module_of(script, os.environ.get(MODULE, "")):
        return os.getcwd()  # noqa: PTH109 - a string
    return os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as python does


def run_main(script: str) -> None:
    """Run it as ``__main__``; what it raises is raised."""
    module = module_of(script, os.environ.get(MODULE, ""))
    if not module:
        runpy.run_path(script, run_name="__main__")
        return
    del os.environ[MODULE]  # not what its own processes are
    runpy.run_module(module, run_name="__main__", alter_sys=True)
