"""The systemd files of a site's daemon, and a check that the site's files are installed.

Adapters add these to their site's files; the packages of ``packaging/`` contain the same. Settings
as of systemd.exec(5) and systemd.service(5), release 252.

``bftrainer doctor`` calls ``findings``, which reads files of this host only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

from bftrainer.batch.findings import FindingTable
from bftrainer.model.site import Finding, SiteFile

ACCOUNT: Final = "bftrainer"
PROGRAM: Final = "/opt/bftrainer/bin/bftrainer"  # of the packages
POLICY_FILE: Final = "/etc/bftrainer/policy.yaml"
STATE_DIR: Final = "/var/lib/bftrainer"
SOCKET: Final = "/run/bftrainer/daemon.sock"  # where verbs look
SERVICE_NAME: Final = "bftrainer.service"
SYSUSERS_NAME: Final = "sysusers.bftrainer.conf"
TMPFILES_NAME: Final = "tmpfiles.bftrainer.conf"

CONFINED: Final = """\
PrivateTmp=yes
PrivateDevices=yes
PrivateIPC=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProcSubset=pid
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""
"""Of every unit of ours (systemd.exec(5))."""

UNPRIVILEGED: Final = """\
RemoveIPC=yes
SystemCallFilter=~@privileged @resources
# ZeroMQ lists interfaces (AF_NETLINK) and sets its threads' policy; refused either, it aborts.
SystemCallFilter=sched_setscheduler
"""
"""Of units that never become another user."""

_SERVICE = """\
# Made by "bftrainer site init". Changes of yours: systemctl edit bftrainer.
[Unit]
Description=bftrainer: trains on idle nodes
Documentation=file:///usr/share/doc/bftrainer
# No Requires=: the daemon outlasts an outage of the batch system.
After=network-online.target remote-fs.target nss-user-lookup.target{after}
Wants=network-online.target
# It tries again for ever; see RestartPreventExitStatus.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={program} daemon --batch-system {batch_system} \\
    --state-dir {state_dir} --socket {socket} --policy {policy_file}
# A policy with an error is logged, and the old one stays in force.
ExecReload=/bin/kill -HUP $MAINPID
User={account}
StateDirectory=bftrainer
StateDirectoryMode=0700
UMask=0077
# Of the socket, for users.
RuntimeDirectory=bftrainer
RuntimeDirectoryMode=0755
# Standard error goes to the journal: journalctl -u bftrainer.

Restart=on-failure
RestartSec=5
# Wrong options or policy, another daemon on the state directory: again would not help.
RestartPreventExitStatus=2 8 75
# Completed cycles feed it, those of an outage, too. A cycle takes 1 s, with the hook 30 s, and
# 3 min if the controller runs into time limits; where more is needed the daemon asks for it.
WatchdogSec=10min
# Time to upgrade or check a large journal.
TimeoutStartSec=15min
# Commands under way may take command_timeout_s each. SIGKILL would lose nothing, either.
TimeoutStopSec=90
# SIGTERM is for the daemon: an sbatch under way must end, or nobody knows whether there is a pilot.
KillMode=mixed
# Memory contains keys.
LimitCORE=0

# It reads almost everything, writes its state directory{writes}, and starts commands of the batch
# system. Not set: PrivateUsers= (who asks at the socket?), PrivateNetwork= and IPAddressAllow=
# (controller and agents), RootDirectory= (the site's commands).
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
{read_write}{confined}{unprivileged}
[Install]
WantedBy=multi-user.target
"""

_SYSUSERS = """\
# The account of the daemon, unless there is one of this name.
u {account} - "bftrainer daemon" {state_dir}
"""
MAX_BYTES: Final = 1 << 20
_ENABLED: Final = f"/etc/systemd/system/multi-user.target.wants/{SERVICE_NAME}"
_COMMANDS: Final = {"BFT-1503": "systemctl enable --now bftrainer"}
_TABLE: Final = FindingTable(
    """
BFT-1501 loss missing
{path} is missing
{without}
-> bftrainer site init --write, then: install {file} as {path}

BFT-1502 loss other
{path} is not the file of this release and site
{difference}
-> bftrainer site init --write, then: install {file} as {path}

BFT-1503 loss disabled
{service} is not enabled
Nothing starts the daemon at boot.
-> systemctl enable --now bftrainer
""",
    command="bftrainer site init --write",
    commands=_COMMANDS,
)


def service_files(
    batch_system: str,
    *,
    program: str = PROGRAM,
    account: str = ACCOUNT,
    after: Sequence[str] = (),
    writes: Sequence[str] = (),
    directories: Sequence[str] = (),
) -> tuple[SiteFile, ...]:
    """Return unit, account and directories.

    Args:
        batch_system: as in ``--batch-system``.
        program: ``bftrainer`` on the daemon's host.
        account: that runs the daemon.
        after: units of the batch system.
        writes: directories that the daemon writes to beside its own.
        directories: lines of tmpfiles.d(5), with their comments.
    """
    service = _SERVICE.format(
        account=account,
        after="".join(f" {unit}" for unit in after),
        batch_system=batch_system,
        confined=CONFINED,
        policy_file=POLICY_FILE,
        program=program,
        read_write="".join(f"ReadWritePaths={path}\n" for path in writes),
        socket=SOCKET,
        state_dir=STATE_DIR,
        unprivileged=UNPRIVILEGED,
        writes="".join(f" and {path}" for path in writes),
    )
    contents = {
        SERVICE_NAME: (
            service,
            f"/etc/systemd/system/{SERVICE_NAME}",
            "Nothing starts the daemon at boot, or again after a failure.",
        ),
        SYSUSERS_NAME: (
            _SYSUSERS.format(account=account, state_dir=STATE_DIR),
            "/etc/sysusers.d/bftrainer.conf",
            f"Nothing makes the account {account} where it is missing.",
        ),
        TMPFILES_NAME: (
            "".join(f"{line}\n" for line in directories),
            "/etc/tmpfiles.d/bftrainer.conf",
            "After a boot its directories are missing, and the daemon only polls.",
        ),
    }
    return tuple(
        SiteFile(name=name, text=text, about=f"install it as {path}", path=path, without=without)
        for name, (text, path, without) in contents.items()
        if text
    )


def findings(files: Sequence[SiteFile], root: Path = Path("/")) -> tuple[Finding, ...]:
    """Return a finding for each file that is missing or differs, and for a disabled service.

    Args:
        files: of the site.
        root: of the host's file system.
    """
    problems, has_service = list[Finding](), True
    for file in files:
        if not file.path:
            continue
        # A package installs the same file below /usr/lib; what is in /etc comes before it.
        places = [file.path, f"/usr/lib/{file.path.removeprefix('/etc/')}"]
        text = next((text for place in places if (text := _text(_below(root, place)))), "")
        is_missing = not text and bool(file.without)
        is_other = bool(text) and text != file.text and (bool(file.without) or _is_ours(text, file))
        values = {"path": file.path, "file": file.name, "without": file.without, "difference": ""}
        if is_other:
            values["difference"] = _difference(text, file.text)
        problems += _TABLE.findings({"missing": is_missing, "other": is_other}, values)
        has_service &= not (is_missing and SERVICE_NAME in file.path)
    is_disabled = has_service and not os.path.lexists(_below(root, _ENABLED))
    return (*problems, *_TABLE.findings({"disabled": is_disabled}, {"service": SERVICE_NAME}))


def _is_ours(text: str, file: SiteFile) -> bool:
    """True for another version of our file, False for a site's file that ours was merged into."""
    return text.partition("\n")[0] == file.text.partition("\n")[0]


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _text(path: Path) -> str:
    """Return what is in a file; "": it is missing, or nobody could use it."""
    try:
        with path.open("rb") as opened:
            return opened.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _difference(here: str, ours: str) -> str:
    lines = zip_longest(here.split("\n"), ours.split("\n"), fillvalue="nothing")
    for number, (has, wants) in enumerate(lines, start=1):
        if has != wants:
            return f"Line {number} is {has.strip()!r}, not {wants.strip()!r}."
    raise ValueError("two texts that do not differ")  # a bug: callers have compared them
