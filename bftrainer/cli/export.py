"""``submit --export``: which variables a trainer's workers get, as sbatch understands it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from bftrainer.api.admission import MAX_STRING_BYTES, MAX_VARIABLES, check_string, is_variable
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError

ALL, NONE = "*ALL", "*NONE"  # in place of a name, which they cannot be
MOST_BYTES = 64 * 1024  # of the submitting environment: half of what a submission may have
# What describes the login session, its host or another job: wrong on a node.
_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI", "BFT", "SSH_", "XDG_", "TMUX", "DBUS_")
_NAMES = frozenset(
    {
        "_", "CUDA_VISIBLE_DEVICES", "DISPLAY", "GPU_DEVICE_ORDINAL", "HOSTNAME", "OLDPWD", "PWD",
        "ROCR_VISIBLE_DEVICES", "SHLVL", "STY", "TMPDIR", "WAYLAND_DISPLAY", "XAUTHORITY",
        "ZE_AFFINITY_MASK",
    }
)  # fmt: skip


def parse_variable(text: str) -> tuple[str, str]:
    """Return name and value of ``KEY=VALUE``, or of ``KEY`` from our environment."""
    key, has_value, value = text.partition("=")
    if has_value and not key.startswith(("ALL,", "NONE,")):
        return key, value
    if text in ("ALL", "NONE"):
        return f"*{text}", ""
    if "," in key:
        raise click.BadParameter(
            f"{text[:60]!r} lists several; repeat it: --export ALL --export KEY=VALUE."
        )
    if key not in os.environ:
        raise click.BadParameter(f"{key[:60]!r} is not set here; write {key[:60]}=VALUE.")
    return key, os.environ[key]


def exported(
    given: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables; a name given explicitly wins, ``NONE`` forgets what came before it."""
    own: dict[str, str] = {}
    has_all = False
    for name, value in given:
        if name in (ALL, NONE):
            own, has_all = (own, True) if name == ALL else ({}, False)
        else:
            own[name] = value
    if not has_all:
        return tuple(own.items())
    taken, left_out = _submitting(environ, MAX_VARIABLES - len(own))
    if told := [text for name, text in left_out if name not in own]:
        click.echo(f"warning: --export ALL leaves out {', '.join(told)}", err=True)
    return tuple({**taken, **own}.items())


def _submitting(
    environ: Mapping[str, str], most: int
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return what is taken of the environment; names and reasons of what else would be."""
    taken: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    room = MOST_BYTES
    wanted = {
        name: value
        for name, value in environ.items()
        if is_variable(name) and name not in _NAMES and not name.startswith(_PREFIXES)
    }
    for name, value in sorted(wanted.items(), key=lambda pair: (len(pair[1]), pair[0])):
        length = len(os.fsencode(value))
        try:
            check_string(name, value, limit_bytes=MAX_STRING_BYTES)
        except UsageError:
            why = f"{length} bytes" if length > MAX_STRING_BYTES else "not one line of UTF-8"
        else:
            room -= len(name) + length
            why = "" if room >= 0 and len(taken) < most else f"{length} bytes, too many in all"
        if why:
            left_out.append((name, f"{shown(name)} ({why})"))
        else:
            taken[name] = value
    return dict(sorted(taken.items())), left_out
