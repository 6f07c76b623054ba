"""Files to install for the submit helper: program, units, the configuration by root.

Adapters add these to their site's files where the option ``submit_helper`` names a socket. Settings
as of systemd.exec(5) and systemd.socket(5), release 252.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bftrainer.batch.service_files import CONFINED
from bftrainer.model.site import SiteFile
from bftrainer.site.submit import helper

HELPER: Final = "/usr/libexec/bftrainer-submit-helper"
SOCKET_NAME: Final = "bftrainer-submit.socket"
SERVICE_NAME: Final = "bftrainer-submit@.service"
WITHOUT: Final = "No pilot can be submitted as another user (run_as: submitter)."

_SOCKET = """\
# The daemon asks here for pilots of other users. Changes of yours: systemctl edit {name}.
[Unit]
Description=bftrainer: submits pilots as their users

[Socket]
ListenStream={socket}
# Nobody else can connect; the helper asks the kernel who did, too.
SocketUser={account}
SocketMode=0600
Accept=yes
MaxConnections=64

[Install]
WantedBy=sockets.target
"""

_SERVICE = """\
# One request, one process. Changes of yours: systemctl edit bftrainer-submit@
[Unit]
Description=bftrainer: submits a pilot as its user
CollectMode=inactive-or-failed

[Service]
ExecStart={python} -IS {helper}
StandardInput=socket
StandardOutput=socket
StandardError=journal
# It gives up after 30 s. What it starts belongs to its user, who may have it take memory.
RuntimeMaxSec=60
MemoryMax=128M
TasksMax=32
UMask=0077
LimitCORE=0

# It becomes the user, ends what it started as them, and nothing else. It writes to their home.
CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_KILL
AmbientCapabilities=
NoNewPrivileges=yes
ProtectSystem=full
{confined}"""


def helper_files(
    options: Mapping[str, Any], *, partition: str, account: str, conf: Path, program: str
) -> tuple[SiteFile, ...]:
    """Return the files; none where the options name no socket of a helper.

    Args:
        options: of the adapter.
        partition: of pilots.
        account: that runs the daemon.
        conf: slurm.conf.
        program: ``bftrainer`` on the daemon's host, beside its Python.
    """
    socket = str(options.get("submit_helper", ""))
    if not socket.startswith("/"):
        return ()
    python = str(Path(program).with_name("python"))
    config = {
        "daemon_user": account,
        "partition": partition,
        "agent": [python, "-I", "-m", "trainers.agent"],
        "options": list(options.get("sbatch_options", ())),
        "users": "any",
        "groups": [],
        # Also without these lines, and by number (docs/howto/slurm-site.md): so that they are seen.
        "denied": sorted(helper.SERVICES),
        "allowed": [],
        "min_uid": 1000,
        "environment": {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(conf)},
    }
    units = {
        SOCKET_NAME: _SOCKET.format(name=SOCKET_NAME, socket=socket, account=account),
        SERVICE_NAME: _SERVICE.format(python=python, helper=HELPER, confined=CONFINED),
    }
    return (
        *(
            SiteFile(
                name=name,
                text=text,
                about=f"install it as /etc/systemd/system/{name}",
                path=f"/etc/systemd/system/{name}",
                without=WITHOUT,
            )
            for name, text in units.items()
        ),
        SiteFile(
            name=Path(HELPER).name,
            text=Path(helper.__file__).read_text(encoding="utf-8"),
            about=f"install it as {HELPER}, of root, mode 0755",
            is_executable=True,
            path=HELPER,
            without=WITHOUT,
        ),
        SiteFile(
            name=helper.CONFIG.name,
            text=json.dumps(config, indent=2) + "\n",
            about=f"say who may have pilots, and install it as {helper.CONFIG}, of root, 0644",
        ),
    )
