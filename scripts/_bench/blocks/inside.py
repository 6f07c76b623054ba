"""What has to be done by an arm's own code: run by its interpreter, as a script.

``inside.py SCRIPTS submit STATE N_NODES`` hands over trainers that sleep, ``leave STATE`` ends
them all, ``read STATE OUT`` writes what the journal says of pilots, as plain JSON: the formats
of two versions of the code may differ. SCRIPTS is the arm's folder of that name.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

sys.path[0] = sys.argv[1]

from _bench.zero_harm.arm import N_TRAINERS, light_trainers  # noqa: E402
from bftrainer.api.client import Client  # noqa: E402
from bftrainer.journal.journal import Journal  # noqa: E402


def main() -> None:
    """Do what the command line says."""
    action, state = sys.argv[2], Path(sys.argv[3])
    if action == "read":
        read(state / "journal.db", Path(sys.argv[4]))
        return
    client = Client(state / "daemon.sock", timeout_s=60.0)
    if action == "submit":
        for trainer in light_trainers(state.parent, N_TRAINERS, int(sys.argv[4])):
            client.submit(trainer)
        return
    for view in client.trainers():
        client.cancel(view.record.trainer_id, now=True)


def read(path: Path, out: Path) -> None:
    """Write every change of a pilot, and the bytes of the journal."""
    changes = []
    with closing(Journal.open(path, clock=time.time, is_verified=False)) as journal:
        for entry in journal.entries():
            changes += [
                (entry.at_s, p.pilot_id, p.job_id, p.node, str(p.state), p.reason)
                for p in entry.pilots
            ]
    size = sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))
    part = out.with_suffix(".part")
    part.write_text(json.dumps({"journal_bytes": size, "pilots": changes}))
    part.rename(out)


if __name__ == "__main__":
    main()
