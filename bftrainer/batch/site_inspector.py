"""Parts of ``BatchSystem.site_files`` for ``bftrainer site init``: first policy and checklist.

``findings`` warns of a pilots' directory that nodes cannot see: a pilot whose output file cannot
be opened ends before any process of ours runs, and the cause is in
the log of the node's batch daemon only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.batch.findings import FindingTable
from bftrainer.batch.service_files import POLICY_FILE, PROGRAM
from bftrainer.model.site import Finding, Measured, SiteFile

POLICY_NAME = "policy.yaml"
CHECKLIST_NAME = "CHECKLIST.md"
_TABLE = FindingTable("""
BFT-1315 loss own_disk
pilots_dir: {directory}
It is on the disk that holds this host's system, and nodes are other hosts: if they do not see it,
each pilot ends at once, and only the log of its node says why.
-> pilots_dir: a directory that all nodes see and only the daemon's account can write, in the policy
""")


def own_program() -> str:
    """Return the ``bftrainer`` beside this interpreter, else that of the packages."""
    program = Path(sys.executable).with_name("bftrainer")
    if not program.exists():
        return PROGRAM
    return str(program)


FirstSetting = tuple[str, Any, str]  # of a first policy: name, value, and why it has this value


def pilots_setting(directory: Path | None) -> tuple[FirstSetting, ...]:
    """Return where pilots' files lie; None: in the state directory, as nodes are this host."""
    if directory is None:
        return ()
    why = "a directory that all nodes see, and that only the daemon's account can write"
    return (("pilots_dir", str(directory), why),)


def pilots_steps(directory: Path | None, account: str) -> tuple[str, ...]:
    """Return the step that makes it."""
    if directory is None:
        return ()
    return (
        (
            f"`install -d -o {account} -g {account} -m 700 {directory}`, on a file system that all "
            "nodes see under the same name. For another place: write it into `pilots_dir` of "
            "`policy.yaml`, and repeat `site init --write` with `--policy policy.yaml` and another "
            "`--directory`."
        ),
    )


def first_policy(
    title: str, settings: Sequence[FirstSetting], options: Mapping[str, Any]
) -> SiteFile:
    """Return a policy with which a site can begin; it loads as it is.

    Args:
        title: of the batch system.
        settings: beside those that every first policy has.
        options: of the batch system.
    """
    few = ("max_nodes", 2, "few at first; remove it when 'bftrainer report harm' is good")
    lines = [f"# First policy of bftrainer on {title}. All settings: bftrainer policy show.", ""]
    for name, value, why in (few, *settings):
        lines += [f"# {why}", f"{name}: {json.dumps(value)}"]
    if options:
        # JSON's scalars, lists and mappings are YAML's.
        lines += ["batch_options:", *(f"  {k}: {json.dumps(v)}" for k, v in options.items())]
    return SiteFile(
        name=POLICY_NAME,
        text="\n".join(lines) + "\n",
        about=f"edit it and install it as {POLICY_FILE}",
    )


def installed(file: SiteFile, place: str = "") -> str:
    """Return the command that installs a file, as a step names it.

    Args:
        file: of the site.
        place: where it goes; "": the place that it has.
    """
    mode = 755 if file.is_executable else 644
    return f"`install -D -m {mode} {file.name} {place or file.path}`"


def checklist(
    title: str,
    batch_system: str,
    steps: Sequence[str],
    *,
    service: Sequence[SiteFile],
    doctor: str,
) -> SiteFile:
    """Return the numbered steps of the administrator; the first and last are those of every site.

    The guides (docs/howto) have the same commands.

    Args:
        title: of the batch system.
        batch_system: as in ``--batch-system``.
        steps: that prepare the site.
        service: files for systemd and the users.
        doctor: what the doctor must say then.
    """
    # Slurm need not be named.
    option = "" if batch_system == "slurm" else f" --batch-system {batch_system}"
    commands = ["`systemd-sysusers`"]
    commands += [
        f"`systemd-tmpfiles --create {Path(file.path).name}`"
        for file in service
        if file.name.startswith("tmpfiles.")
    ]
    all_steps = (
        "\n".join(map(installed, service)),
        (
            f"{' and '.join(commands)}. The account needs the same "
            "number on all hosts, so a site with shared accounts makes it there first."
        ),
        *steps,
        (
            f"`bftrainer policy check{option} {POLICY_NAME}` and `install -D -m 644 {POLICY_NAME} "
            f"{POLICY_FILE}`"
        ),
        "`systemctl daemon-reload`",
        f"`bftrainer doctor{option} --policy {POLICY_FILE}`. {doctor}",
        "`systemctl enable --now bftrainer` and `systemctl is-active bftrainer`",
        (
            "`bftrainer nodes` shows every node and why it is used or not. Submit a small trainer, "
            "then an ordinary job to its node: `bftrainer report harm` lists the hand-over."
        ),
    )
    numbered = [
        f"{number}. {step}".replace("\n", "\n   ") for number, step in enumerate(all_steps, start=1)
    ]
    heading = f"# bftrainer on {title}: what the administrator does"
    hint = f"'bftrainer help {batch_system}-site' explains these steps."
    return SiteFile(
        name=CHECKLIST_NAME,
        text="\n".join((heading, "", hint, "", *numbered)) + "\n",
        about="the steps, in this order",
    )


def findings(directory: Path, measured: Measured, *, root: Path = Path("/")) -> tuple[Finding, ...]:
    """Return a finding if the directory is on this host's own disk, where nodes do not see it.

    Call it where nodes are other hosts. A disk that is exported to them cannot be told from another
    one, unless it holds the system, too; once an agent has come from there, nothing is in doubt.

    Args:
        directory: of pilots; it need not exist.
        measured: by the daemon.
        root: a directory of the system's disk.
    """
    above = next(place for place in (directory, *directory.parents) if place.exists())
    if measured.start_s is not None or above.stat().st_dev != root.stat().st_dev:
        return ()
    return _TABLE.findings({"own_disk": True}, {"directory": directory})
