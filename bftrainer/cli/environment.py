"""The variables that a trainer gets from the environment of its submission (``--export``)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

import click

from bftrainer.api.admission import MAX_VARIABLES, check_string, is_variable
from bftrainer.cli.output import print_lines
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer_spec import MAX_STRING_BYTES
from trainers.agent.surroundings import is_of_pilot

ALL, NONE = "*ALL", "*NONE"  # in place of a name, which they cannot be
# Of the submitting environment: half of what a submission may have.
MOST_BYTES: Final = 64 * 1024
_NEXT_VARIABLE = re.compile(r",[A-Za-z_]\w*=", re.ASCII)
# What describes the login session, its host or another job: wrong on a node.
_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI", "BFT", "SSH_", "XDG_", "TMUX", "DBUS_")
_NAMES = frozenset(
    {
        "_", "CUDA_VISIBLE_DEVICES", "DISPLAY", "GPU_DEVICE_ORDINAL", "HOSTNAME", "OLDPWD", "PWD",
        "PYTHONHASHSEED", "ROCR_VISIBLE_DEVICES", "SHLVL", "STY", "TMPDIR", "WAYLAND_DISPLAY",
        "XAUTHORITY", "ZE_AFFINITY_MASK",
    }
)  # fmt: skip


def parse_variables(text: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values of one ``--export``.

    It is ``KEY=VALUE``, whose value may have commas, or as for sbatch a list that begins with ALL,
    NONE or a name: ``ALL,KEY=VALUE`` or ``KEY,OTHER=VALUE``. Without ALL such a list is all that
    is passed on.
    """
    first, comma, _ = text.partition(",")
    if comma and "=" not in first:
        return tuple(map(parse_variable, text.split(",")))
    key, _, value = text.partition("=")
    if _NEXT_VARIABLE.search(value):
        print_lines(
            f"note: --export {shown(key)} has the value {shown(value)}; for several variables"
            f" write --export NONE,{shown(text)}",
            err=True,
        )
    return (parse_variable(text),)


def parse_variable(text: str) -> tuple[str, str]:
    """Return name and value of ``KEY=VALUE``, or of ``KEY`` from our environment."""
    key, has_value, value = text.partition("=")
    if has_value:
        return key, value
    if text in ("ALL", "NONE"):
        return f"*{text}", ""
    if key not in os.environ:
        raise click.BadParameter(f"{key[:60]!r} is not set here; write {key[:60]}=VALUE.")
    return key, os.environ[key]


def exported(
    options: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables; a name given explicitly wins, ``NONE`` forgets what came before it."""
    explicit: dict[str, str] = {}
    has_all = False
    for name, value in options:
        if name == ALL:
            has_all = True
        elif name == NONE:
            has_all = False
            explicit = {}
        else:
            explicit[name] = value
    if not has_all:
        return tuple(explicit.items())
    inherited, omissions = _submitting(environ, MAX_VARIABLES - len(explicit))
    for name in explicit:
        omissions.pop(name, None)
    if omissions:
        warning = ", ".join(omissions.values())
        print_lines(f"warning: --export ALL leaves out {warning}", err=True)
    return tuple({**inherited, **explicit}.items())


def _submitting(
    environ: Mapping[str, str], max_variables: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what is inherited of the environment; of what else would be, why it is not."""
    inherited: dict[str, str] = {}
    omissions: dict[str, str] = {}
    room = MOST_BYTES
    # The shortest first: where not all have room, the fewest are left out.
    for name in sorted(environ, key=lambda name: (len(environ[name]), name)):
        value = environ[name]
        if not _is_of_user(name):
            continue
        length = len(os.fsencode(value))
        try:
            check_string(name, value, limit_bytes=MAX_STRING_BYTES)
        except UsageError:
            fault = "not one line of UTF-8"
            if length > MAX_STRING_BYTES:
                fault = f"{length} bytes"
            omissions[name] = f"{shown(name)} ({fault})"
            continue
        room -= len(name) + length
        if room >= 0 and len(inherited) < max_variables:
            inherited[name] = value
        else:
            omissions[name] = f"{shown(name)} ({length} bytes, too many in all)"
    return dict(sorted(inherited.items())), omissions


def _is_of_user(name: str) -> bool:
    """Return whether a variable describes neither a login session, nor its host, nor a job."""
    return (
        is_variable(name)
        and name not in _NAMES
        and not name.startswith(_PREFIXES)
        and not is_of_pilot(name)
    )
