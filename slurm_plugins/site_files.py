"""The files for an administrator of Slurm: the pilots' partition, the hook, a first policy. Pure.

The partition is that of docs/howto/slurm-site.md; what else should change is what ``doctor`` finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bftrainer.batch.service_files import ACCOUNT, PROGRAM, service_files
from bftrainer.batch.site_inspector import (
    checklist,
    first_policy,
    installed,
    pilots_setting,
    pilots_steps,
)
from bftrainer.model.site import SiteFile
from bftrainer.site.submit.helper import CONFIG
from bftrainer.site.submit.service_files import helper_files
from slurm_plugins import doctor
from slurm_plugins.doctor import SlurmSettings
from slurm_plugins.hook import scripts
from slurm_plugins.hook.scripts import relay_file
from slurm_plugins.parse import settings_in

CONF_NAME = "slurm.conf.bftrainer"
HOOK_FILE = "/run/bftrainer-hook/told"
_AS_USERS = ("run_as", "submitter", "pilots run as the users whose trainers they are for")
_CLEAN = (
    "It must end with status 0. Only BFT-1274 may give another one: how long the site's Epilog "
    "takes is measured when the daemon runs, so look again then."
)
_USERS = (
    "`systemctl daemon-reload` and `systemctl enable --now bftrainer-submit.socket`",
    "Whoever may have pilots has the right to submit to their partition.",
)
# Where they run on the daemon's host; sackd: of AuthType=auth/slurm, which needs no munge.
UNITS = ("munge.service", "sackd.service", "slurmctld.service")
PILOT_QOS = "bfqos"
_NOT_OF_CONF = {"BFT-1270", "BFT-1274", "BFT-1275"}  # sacctmgr; the site's own scripts


def site_files(
    settings: SlurmSettings,
    options: Mapping[str, Any],
    *,
    program: str = PROGRAM,
    pilots_dir: Path | None = None,
) -> tuple[SiteFile, ...]:
    """Return the files, filled in for this site, the checklist last.

    Args:
        settings: as printed.
        options: of the adapter, as they were given.
        program: ``bftrainer`` on the daemon's host.
        pilots_dir: of the policy, where nodes are other hosts; None: not needed.
    """
    hook_file = Path(str(options.get("hook_file", HOOK_FILE)))
    config = settings_in(settings.config)
    conf = Path(config.get("SLURM_CONF", "/etc/slurm/slurm.conf"))
    slurm_user = config.get("SlurmUser", "slurm").partition("(")[0]
    account = str(options.get("user", ACCOUNT))
    writes: tuple[str, ...] = ()
    if pilots_dir:
        writes = (str(pilots_dir),)
    service = _service(hook_file, slurm_user, account=account, program=program, writes=writes)
    relay = relay_file(options, file=hook_file, directory=conf.parent, account=account)
    helper = helper_files(
        options, partition=settings.pilot_partition, account=account, conf=conf, program=program
    )
    pilot_settings = pilots_setting(pilots_dir)
    if helper:
        pilot_settings = (_AS_USERS,)
    steps = [*pilots_steps(pilots_dir, account), *_steps(settings, conf, hook_file, account)]
    # A relay tells of the hook's lines, or the daemon reads its file.
    relays: tuple[SiteFile, ...] = ()
    policy_options = dict(options)
    if relay:
        relays = (relay,)
        steps.append(f"`{relay.name}`: {relay.about}; enable and start it.")
    else:
        policy_options["hook_file"] = str(hook_file)
    steps += _helper_steps(helper)
    return (
        *service,
        *relays,
        *helper,
        _conf(settings, conf),
        *_scripts(hook_file, conf.parent),
        first_policy("Slurm", pilot_settings, policy_options),
        checklist("Slurm", "slurm", steps, service=service, doctor=_CLEAN),
    )


def _scripts(hook_file: Path, directory: Path) -> Iterator[SiteFile]:
    texts = {
        scripts.LUA_NAME: scripts.lua(hook_file),
        scripts.EPILOG_NAME: scripts.epilog(hook_file),
    }
    for name, text in texts.items():
        yield SiteFile(
            name=name,
            text=text,
            about="bftrainer-slurm-hook writes it",
            is_executable=name == scripts.EPILOG_NAME,
            path=str(directory / name),
        )


def usual_service() -> tuple[SiteFile, ...]:
    """Return the service of a site with Slurm's usual names, which packages contain."""
    return _service(Path(HOOK_FILE), "slurm", account=ACCOUNT, program=PROGRAM)


def _service(
    hook_file: Path,
    slurm_user: str,
    *,
    account: str,
    program: str,
    writes: tuple[str, ...] = (),
) -> tuple[SiteFile, ...]:
    place = (
        "# The hook's file: SlurmUser writes, the daemon reads, nobody else does either.",
        f"d {hook_file.parent} 2750 {slurm_user} {account} -",
    )
    return service_files(
        "slurm", program=program, account=account, after=UNITS, writes=writes, directories=place
    )


def _with_partition(settings: SlurmSettings) -> tuple[SlurmSettings, str]:
    """Return the settings as they will be, and the line of the pilots' partition."""
    name = settings.pilot_partition
    line = f"PartitionName={name} Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0"
    if name in doctor.partitions_in(settings.partitions):
        return replace(settings, has_hook=True), ""
    partitions = f"{settings.partitions.rstrip()}\n{line}\n"
    line += " MaxTime=04:00:00 DefaultTime=00:10:00 MaxNodes=1"
    if _has_database(settings):
        line += f" QOS={PILOT_QOS}"
    return replace(settings, partitions=partitions, has_hook=True), line


def _has_database(settings: SlurmSettings) -> bool:
    kind = settings_in(settings.config).get("AccountingStorageType", "")
    return kind.endswith("slurmdbd")


def _conf(settings: SlurmSettings, conf: Path) -> SiteFile:
    later, partition = _with_partition(settings)
    lines = []
    if partition:
        lines.append(partition)
    for name, value in scripts.settings(conf.parent).items():
        site_value = settings_in(settings.config).get(name, "(null)")
        if site_value in {"", "(null)", value}:
            lines.append(f"{name}={value}")
        else:
            lines.append(f"# {name} is {site_value}: add {value} to it.")
    for finding in doctor.findings(later):
        if finding.code not in _NOT_OF_CONF:
            lines += [f"# {finding.code}: {finding.cost}", f"# change: {finding.remedy}"]
    return SiteFile(name=CONF_NAME, text="\n".join(lines) + "\n", about=_about(conf))


def _helper_steps(helper: Sequence[SiteFile]) -> tuple[str, ...]:
    """Return the steps that install the submit helper; none if the site has none."""
    if not helper:
        return ()
    places = {CONFIG.name: str(CONFIG)}
    return (
        f"`{CONFIG.name}`: say who may have pilots.",
        "\n".join(installed(file, places.get(file.name, "")) for file in helper),
        *_USERS,
    )


def _steps(settings: SlurmSettings, conf: Path, hook_file: Path, account: str) -> list[str]:
    later, _ = _with_partition(settings)
    partition = settings.pilot_partition
    beside_conf = [
        f"{finding.setting}: {finding.cost}\n{_in_code(finding.remedy)}"
        for finding in doctor.findings(later)
        if finding.code in _NOT_OF_CONF
    ]
    return [
        *beside_conf,
        *_accounts(settings, account),
        (
            f"`cat {CONF_NAME} >> {conf}`, and make by hand the changes that its lines with # ask "
            "for."
        ),
        (
            f"`bftrainer-slurm-hook --file {hook_file} --group {account} --directory {conf.parent}`"
            f" writes both scripts. A {scripts.LUA_NAME} of the site is left alone: merge ours "
            "into it."
        ),
        (
            "`systemctl restart slurmctld`, which a new JobSubmitPlugins needs (jobs run on), then "
            f"`sinfo -p {partition}`"
        ),
    ]


def _in_code(remedy: str) -> str:
    """Return a change in which a command is one to be typed."""
    command, semicolon, explanation = remedy.partition("; ")
    if not command.startswith("sacctmgr "):
        return remedy
    return f"`{command}`{semicolon}{explanation}"


def _accounts(settings: SlurmSettings, account: str) -> list[str]:
    """Return what slurmdbd must know of the daemon's account, which submits the pilots."""
    enforced = settings_in(settings.config).get("AccountingStorageEnforce", "none")
    if not _has_database(settings) or enforced == "none":
        return []
    user = f"sacctmgr -i add user {account} account={account} qos=+{PILOT_QOS}"
    return [f"`sacctmgr -i add account {account}` and `{user}`"]


def _about(conf: Path) -> str:
    return f"put its lines into {conf}"
