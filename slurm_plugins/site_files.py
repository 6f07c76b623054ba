"""What an administrator of Slurm installs: the pilots' partition, the hook, a first policy. Pure.

The partition is that of docs/howto/slurm-site.md; what else should change is what ``doctor`` finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bftrainer.model.site_file import SiteFile
from bftrainer.poll.site_inspector import checklist, first_policy
from slurm_plugins import doctor
from slurm_plugins.doctor import SlurmSettings
from slurm_plugins.hook import scripts
from slurm_plugins.parse import settings_in, values_in

CONF_NAME = "slurm.conf.bftrainer"
HOOK_FILE = "/run/bftrainer-hook/told"
_NOT_OF_CONF = {"BFT-1270", "BFT-1274", "BFT-1275"}  # sacctmgr; the site's own scripts


def site_files(settings: SlurmSettings, options: Mapping[str, Any]) -> tuple[SiteFile, ...]:
    """Return the files, filled in for this site, the checklist last.

    Args:
        settings: as printed.
        options: of the adapter, as they were given.
    """
    hook_file = Path(str(options.get("hook_file", HOOK_FILE)))
    conf = Path(settings_in(settings.config).get("SLURM_CONF", "/etc/slurm/slurm.conf"))
    return (
        _conf(settings, conf),
        SiteFile(
            name=scripts.LUA_NAME,
            text=scripts.lua(hook_file),
            about=f"into {conf.parent}; bftrainer-slurm-hook does it",
        ),
        SiteFile(
            name=scripts.EPILOG_NAME,
            text=scripts.epilog(hook_file),
            about=f"into {conf.parent}; bftrainer-slurm-hook does it",
            is_executable=True,
        ),
        first_policy("Slurm", (), {**options, "hook_file": str(hook_file)}),
        checklist(
            "Slurm",
            "slurm",
            _steps(settings, conf, hook_file),
            doctor="It must end with status 0.",
        ),
    )


def _with_partition(settings: SlurmSettings) -> tuple[SlurmSettings, str]:
    """Return the settings as they will be, and the line of the pilots' partition."""
    name = settings.pilot_partition
    line = f"PartitionName={name} Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0"
    known = any(
        values_in(one).get("PartitionName") == name for one in settings.partitions.splitlines()
    )
    partitions = settings.partitions if known else f"{settings.partitions.rstrip()}\n{line}\n"
    full = f"{line} MaxTime=04:00:00 DefaultTime=00:10:00 MaxNodes=1"
    return replace(settings, partitions=partitions, has_hook=True), "" if known else full


def _conf(settings: SlurmSettings, conf: Path) -> SiteFile:
    later, partition = _with_partition(settings)
    lines = [partition] if partition else []
    for name, value in scripts.settings(conf.parent).items():
        own = settings_in(settings.config).get(name, "(null)")
        is_free = own in {"", "(null)", value}
        lines.append(f"{name}={value}" if is_free else f"# {name} is {own}: add {value} to it.")
    for found in doctor.findings(later):
        if found.code not in _NOT_OF_CONF:
            lines += [f"# {found.code}: {found.cost}", f"# change: {found.remedy}"]
    return SiteFile(name=CONF_NAME, text="\n".join(lines) + "\n", about=_about(conf))


def _steps(settings: SlurmSettings, conf: Path, hook_file: Path) -> list[str]:
    later, _ = _with_partition(settings)
    others = [
        f"{found.setting}: {found.cost}\n{found.remedy}"
        for found in doctor.findings(later)
        if found.code in _NOT_OF_CONF
    ]
    return [
        f"`{CONF_NAME}`: {_about(conf)}, and make the changes that it asks for.",
        *others,
        (
            f"`bftrainer-slurm-hook --file {hook_file} --directory {conf.parent}`: it makes a safe "
            f"directory for the file and writes both scripts. A {scripts.LUA_NAME} of the site is "
            "left alone: merge ours into it."
        ),
        (
            f"`scontrol reconfigure`, then `scontrol show partition {settings.pilot_partition}`. "
            "New JobSubmitPlugins need a restart of slurmctld."
        ),
    ]


def _about(conf: Path) -> str:
    return f"put its lines into {conf}"
