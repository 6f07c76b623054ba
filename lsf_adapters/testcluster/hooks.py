"""Runs esub and epsub beside bsub, on the submission host, as the submitting user.

A command of a cluster that has such a program imports it from the cluster's lib. esub reads the
parameters of the submission from $LSB_SUB_PARM_FILE, may change them and may refuse; epsub is told
the id of the accepted job (IBM only).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable

from bftrainer.batch import process
from lsf_adapters.testcluster.options import Options, RefusedError, parse

_ABORT = 97  # LSB_SUB_ABORT_VALUE
_IN_ANGLES = re.compile(r"<([^<>]*)>")


def before(root: str, arguments: list[str], stdin: bytes) -> tuple[int, list[str]]:
    """Run esub; return a status to exit with, or 0 and what it changed."""
    options = _options(root, arguments, stdin)
    if options is None or not os.path.exists(f"{root}/etc/esub"):  # noqa: PTH110
        return 0, []
    with tempfile.TemporaryDirectory(prefix=".lsbsub") as folder:
        status = _run(root, "esub", folder, _parameters(options), {})
        if status == _ABORT:
            sys.stderr.write("Request aborted by esub. Job not submitted.\n")
            return 255, []
        try:
            with open(f"{folder}/modify", encoding="utf-8") as file:  # noqa: PTH123
                return 0, file.read().splitlines()
        except OSError:
            return 0, []


def after(root: str, arguments: list[str], out: bytes) -> None:
    """Run epsub with the id of the job; -1 if it was not accepted."""
    if not _is_ibm(root) or not os.path.exists(f"{root}/etc/epsub"):  # noqa: PTH110
        return
    words = _IN_ANGLES.findall(out.decode(errors="replace")) or [
        "-1",
        "",
    ]  # Job <7> ... to queue <normal>.
    extra = {"LSB_SUB_JOB_ID": words[0], "LSB_SUB_JOB_QUEUE": words[-1]}
    parameters: list[str] = []
    if options := _options(root, arguments, b"#\ntrue\n"):
        parameters = _parameters(options)
    with tempfile.TemporaryDirectory(prefix=".lsbsub") as folder:
        _run(root, "epsub", folder, parameters, extra)


def _options(root: str, arguments: list[str], stdin: bytes) -> Options | None:
    try:
        text = stdin.decode(errors="surrogateescape")
        return parse(arguments, text, is_ibm=_is_ibm(root), now_s=time.time())
    except RefusedError:
        return None  # the server refuses it in bsub's own words


def _is_ibm(root: str) -> bool:
    return os.path.exists(f"{root}/run/is_ibm")  # noqa: PTH110


def _run(root: str, name: str, folder: str, parameters: list[str], extra: dict[str, str]) -> int:
    path = f"{folder}/parameters"
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        file.write("".join(f"{line}\n" for line in parameters))
    environment = {
        **os.environ,
        "LSB_SUB_ABORT_VALUE": str(_ABORT),
        "LSB_SUB_MODIFY_ENVFILE": f"{folder}/environment",
        "LSB_SUB_MODIFY_FILE": f"{folder}/modify",
        "LSB_SUB_PARM_FILE": path,
        "LSF_BINDIR": f"{root}/bin",
        "LSF_LIBDIR": f"{root}/lib",
        "LSF_SERVERDIR": f"{root}/etc",
        **extra,
    }
    child = process.spawn(
        (f"{root}/etc/{name}",), env=environment, stdout=1, stderr=2, new_session=False
    )
    return child.wait()


def _parameters(options: Options) -> list[str]:
    """Return the lines of the parameter file, in the recorded order."""
    values = options.values
    quoted = (
        ("LSB_SUB_JOB_NAME", values.get("J")),
        ("LSB_SUB_QUEUE", values.get("q")),
        ("LSB_SUB_IN_FILE", values.get("i")),
        ("LSB_SUB_OUT_FILE", values.get("o")),
        ("LSB_SUB_ERR_FILE", values.get("e")),
    )
    later = (
        ("LSB_SUB_DEPEND_COND", values.get("w")),
        ("LSB_SUB_RES_REQ", values.get("R")),
        ("LSB_SUB_PROJECT_NAME", values.get("P")),
        ("LSB_SUB_HOSTS", "".join(f"{name} " for name in options.hosts) or None),
    )
    lines = _assignments(quoted)
    if options.has("x"):
        lines.append("LSB_SUB_EXCLUSIVE=Y")
    lines += _assignments(later)
    if options.begin_s is not None:
        lines.append(f"LSB_SUB_BEGIN_TIME={int(options.begin_s)}")
    if options.term_s is not None:
        lines.append(f"LSB_SUB_TERM_TIME={int(options.term_s)}")
    if options.limit_s is not None:
        lines.append(f"LSB_SUB_RLIMIT_RUN={int(options.limit_s)}")
    if options.has("n"):
        lines.append(f"LSB_SUB_NUM_PROCESSORS={options.min_slots}")
        lines.append(f"LSB_SUB_MAX_NUM_PROCESSORS={options.max_slots}")
    return lines


def _assignments(values: Iterable[tuple[str, str | None]]) -> list[str]:
    return [f'{name}="{value}"' for name, value in values if value is not None]
