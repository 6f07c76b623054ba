"""The script that a site installs as ``epsub.bftrainer`` or ``esub.bftrainer``.

It runs as the submitting user on the submission host, in the way of every ``bsub``. So it never
waits, never refuses (status 97 would) and reads LSF's parameter file as data: it is not sourced.
epsub runs after LSF accepted the job and is the better choice; esub runs before (volclava knows
no other). Source: "External job submission and execution controls", IBM Spectrum LSF 10.1.
"""

from __future__ import annotations

import os
from pathlib import Path

AFTER, BEFORE = "epsub.bftrainer", "esub.bftrainer"  # in LSF_SERVERDIR
METHOD = "bftrainer"  # of LSB_ESUB_METHOD in lsf.conf
FIRST_LINE = "bftrainer-esub 1"  # marks a file as written by the script
PLACE_MODE = 0o1733  # everybody creates files in the directory, only its owner lists it
MOST_BYTES = 4000  # of a file, without its first line
# What is said of a job, as in the parameter file.
KEYS = (
    *("QUEUE", "NUM_PROCESSORS", "MAX_NUM_PROCESSORS", "RLIMIT_RUN", "EXCLUSIVE", "HOLD"),
    *("BEGIN_TIME", "DEPEND_COND", "HOSTS", "RES_REQ", "MODIFY"),
)

# Each user has a directory to write in and moves the file out of it: then nobody can put a pipe or
# a link in the way. Moving changes the time of the directory above, which is all the daemon looks
# at. The file is replaced, so it does not grow.
_SCRIPT = """\
#!/bin/sh
# Tells bftrainer of a submission: one file per user. Nothing here can refuse or change a job.
PATH=/usr/bin:/bin
umask 022
place='{place}'

tell() {{
    [ -f "$LSB_SUB_PARM_FILE" ] && [ "${{LSB_SUB_JOB_ID:-}}" != -1 ] || return
    me=$(id -u) || return
    asked=$(sed -n {sed} "$LSB_SUB_PARM_FILE") || return
    # A file server that does not answer must not hold up bsub.
    write "$place/.d$me" "$place/u$me" "$asked" &
}}

write() {{
    [ -d "$1" ] || mkdir -m 755 "$1"
    [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return
    printf '{first_line}\\n%.{most_bytes}s\\n' "$3" > "$1/new.$$" &&
        mv -f "$1/new.$$" "$2" || rm -f "$1/new.$$"
}}

tell < /dev/null > /dev/null 2>&1
exit 0
"""


def script(place: Path) -> str:
    """Return the script that writes into a directory, which all submission hosts must have.

    Raises:
        ValueError: its name cannot be quoted.
    """
    name = str(place)
    if not place.is_absolute() or set(name) & set("'\"\\\n") or not name.isprintable():
        raise ValueError(f"{name!r} cannot be used in a script: use a plain absolute path")
    return _SCRIPT.format(
        place=name,
        sed=" ".join(f"-e '/^LSB_SUB_{key}=/p'" for key in KEYS),
        first_line=FIRST_LINE,
        most_bytes=MOST_BYTES,
    )


def make_place(place: Path, owner_uid: int = -1) -> None:
    """Create the directory; its owner, the daemon's user, is the only one who lists it.

    Raises:
        OSError: it cannot be created.
    """
    place.mkdir(mode=0o700)
    os.chown(place, owner_uid, -1)
    place.chmod(PLACE_MODE)


def install(server_dir: Path, place: Path, name: str = AFTER) -> Path:
    """Write the script into LSF_SERVERDIR under one of its names; return its path.

    Raises:
        OSError: the directory cannot be written.
        ValueError: the place's name cannot be quoted.
    """
    file = server_dir / name
    file.write_text(script(place), encoding="utf-8")
    file.chmod(0o755)
    return file
