"""Runs a command under a preamble: a user's shell file that prepares its environment. Pure.

The file is sourced by bash, after /etc/profile (which defines ``module``) and before the command
replaces the shell. It may do so itself: ``exec apptainer exec image.sif "$@"``. Used by ``submit``
and wherever a user's programs are started on nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bftrainer.model.container import ENDED_EARLY
from bftrainer.model.container import MARK as CONTAINER

MAX_BYTES = 64 * 1024
NOT_STARTED = 126  # exit status if the command was not started; never that of a checkpoint
CODE = "BFT-1061"
_MARK = "bftrainer: "
_CODE = re.compile(r"BFT-\d{4}: ", re.ASCII)
_MOST_SHOWN = 300  # characters of its last line
# Not ``. "$0" || exit``, which would suspend a ``set -e`` in the file. The personal profile is not
# read: it is written for terminals. PATH stays in front of what /etc/profile makes of it.
_SHELL = r"""
__bft_command=("$@")
trap 'echo "bftrainer: The preamble ended with status $?" >&2; exit 126' EXIT
if [ -r /etc/profile ]; then
  __bft_path=$PATH; set --; . /etc/profile; PATH=$__bft_path:$PATH; set -- "${__bft_command[@]}"
fi
. "$0"
__bft_status=$?; [ $__bft_status = 0 ] || exit $__bft_status
shopt -s execfail
exec "${__bft_command[@]}"
trap - EXIT
echo "bftrainer: The preamble ended, but its command cannot be started" >&2
exit 126
"""


def under(path: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs ``argv`` under the preamble in ``path`` (absolute)."""
    return ("/bin/bash", "--norc", "-c", _SHELL, path, *argv)


def why_not_started(output: str, status: int, path: str) -> str:
    """Return code and cause, from the output and status of a command under a preamble."""
    # Other nodes have other paths, but causes are compared.
    if path:
        output = output.replace(path, "preamble")
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if line]
    code, cause = CODE, f"What the preamble started ended with status {status}"
    marks = [i for i, line in enumerate(lines) if line.startswith(_MARK)]
    if status == NOT_STARTED and marks:
        cause = lines[marks[-1]].removeprefix(_MARK)
        if _CODE.match(cause):  # of the entry into a container, a whole sentence
            return cause
        lines = lines[: marks[-1]]
    elif marks and lines[marks[-1]].startswith(CONTAINER):
        container = lines[marks[-1]].removeprefix(CONTAINER)
        lines = lines[marks[-1] + 1 :]
        code = ENDED_EARLY
        cause = f"The container {container} ended with status {status} before its program began"
    last = f": {lines[-1][:_MOST_SHOWN]}" if lines else ""
    return f"{code}: {cause}{last}"


def fault_of(text: str) -> str:
    """Say what is wrong with the text of a preamble; "": nothing."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        return f"has more than {MAX_BYTES} bytes"
    if "\r" in text:
        return "has the line ends of Windows, which bash does not read"
    for character in text:
        is_control = character < " " and character not in "\t\n\f"
        if is_control or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff":
            return f"contains the character {character!r}"
    return ""
