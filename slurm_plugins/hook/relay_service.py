"""What systemd is told of a relay on a controller's host. Pure.

Settings as of systemd.exec(5) and systemd.service(5), release 252.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bftrainer.batch.service_files import CONFINED, UNPRIVILEGED
from bftrainer.model.site import SiteFile

RELAY_SERVICE_NAME: Final = "bftrainer-hook-relay.service"
RELAY_PROGRAM: Final = "/opt/bftrainer/bin/bftrainer-slurm-hook"  # of the packages
RELAY_KEY_FILE: Final = Path("/var/lib/bftrainer-hook-relay/key")

_SERVICE = """\
# On each host of a controller that is not the daemon's. Changes of yours:
# systemctl edit {name}
[Unit]
Description=bftrainer: tells the daemon's host of Slurm's jobs
After=network-online.target nss-user-lookup.target
Wants=network-online.target
# It tries again for ever; meanwhile the daemon polls.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={program} --relay {endpoint} --daemon-key {daemon_key} \\
    --key {key_file} --file {file} --directory {directory}
# It reads the hook's file and slurm.conf, and writes nothing.
User={account}
StateDirectory=bftrainer-hook-relay
StateDirectoryMode=0700
UMask=0077
Restart=always
RestartSec=5
LimitCORE=0
MemoryMax=256M

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
{confined}{unprivileged}
[Install]
WantedBy=multi-user.target
"""


def relay_service(
    *,
    endpoint: str,
    daemon_key: str,
    file: Path,
    directory: Path,
    account: str,
    program: str = RELAY_PROGRAM,
    key_file: Path = RELAY_KEY_FILE,
) -> str:
    """Return the unit.

    Args:
        endpoint: of the daemon, tcp://HOST:PORT.
        daemon_key: its public key, in hexadecimal.
        file: the hook's.
        directory: of slurm.conf.
        account: runs it; may read the file, and owns the key.
        program: ``bftrainer-slurm-hook`` on the controller's host.
        key_file: of the relay (``--make-key``).
    """
    return _SERVICE.format(
        name=RELAY_SERVICE_NAME,
        program=program,
        endpoint=endpoint,
        daemon_key=daemon_key,
        key_file=key_file,
        file=file,
        directory=directory,
        account=account,
        confined=CONFINED,
        unprivileged=UNPRIVILEGED,
    )


def relay_file(
    options: Mapping[str, Any], *, file: Path, directory: Path, account: str
) -> SiteFile | None:
    """Return the unit for each controller's host; None: the policy names no relays.

    Args:
        options: of the adapter, as they were given.
        file: the hook's.
        directory: of slurm.conf.
        account: as for ``relay_service``.
    """
    port = str(options.get("hook_relay", "")).rpartition(":")[2]
    if not port:
        return None
    keys = options.get("hook_relay_key_file")
    text = relay_service(
        endpoint=f"tcp://DAEMON_HOST:{port}",
        daemon_key="DAEMON_KEY",
        file=file,
        directory=directory,
        account=account,
    )
    return SiteFile(
        name=RELAY_SERVICE_NAME,
        text=text,
        about=f"on each controller's host, /etc/systemd/system/{RELAY_SERVICE_NAME}, with the "
        "daemon's host and public key in place of DAEMON_HOST and DAEMON_KEY "
        f"(bftrainer-slurm-hook --make-key {keys})",
    )
