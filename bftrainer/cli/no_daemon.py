"""The next step of those whose daemon does not answer: it depends on the verb and on the site.

Who trains wants a daemon, or none. Who administers wants what the verb would have done, which often
goes without one.
"""

from __future__ import annotations

import contextlib
import functools
import shutil

from bftrainer.model.errors import BftError, NoDaemonError

_ASKS = "scontrol"  # without it there is no Slurm to ask
_NAMED = "One that runs is named with --socket, BFTRAINER_SOCKET or BFTRAINER_STATE_DIR."
_START = "systemctl start bftrainer (one of your own: bftrainer up)"
_JOURNAL = "--journal /var/lib/bftrainer/journal.db (of one of your own: in its state directory)"
# Verb of administrators, or of who ends a daemon -> what does it without one.
WITHOUT: dict[str, str] = {
    "drain": "The daemon may run on another host: drain it there. Without one, in this order: "
    "'scontrol update PartitionName=PARTITION State=DOWN' keeps new pilots from starting, then "
    "'scancel -p PARTITION -u USER' ends those that run (USER runs the daemon; on LSF 'badmin "
    f"qclose QUEUE', then 'bkill -u USER -q QUEUE 0'). {_NAMED}",
    "resume": "Nodes are taken by a daemon that runs, unless it was drained before it ended: "
    f"{_START}, then bftrainer resume. {_NAMED}",
    "policy": "A daemon reads its policy when it starts: bftrainer policy check FILE, then "
    f"{_START}. {_NAMED}",
    "report": f"Read its journal instead: bftrainer report harm {_JOURNAL}. {_NAMED}",
    "account": f"Read its journal instead: bftrainer account {_JOURNAL}. {_NAMED}",
    "metrics": "Only a daemon that runs has metrics; the log says why it ended: journalctl -u "
    f"bftrainer. {_NAMED}",
    "down": "There is nothing to end. Pilots that are left end by themselves within 30 min "
    f"(lease_s), or with scancel of what squeue --me lists. {_NAMED}",
}


def led(error: NoDaemonError, verb: str) -> BftError:
    """Return the error with the step for this verb and this site.

    Of administrators' verbs what works without a daemon; of others ``up`` where Slurm has a
    partition whose jobs are preempted, ``try`` elsewhere.
    """
    if verb in WITHOUT:
        step = WITHOUT[verb]
    elif error.is_of_site:
        step = error.next_step
    else:
        step = next_step(partitions())
    return BftError(error.code, error.cause, step, exit_code=error.exit_code)


def next_step(names: tuple[str, ...]) -> str:
    """Return what to do where these partitions are preemptable."""
    if not names:
        return (
            "Try your script without one: bftrainer try SCRIPT (no partition with preemption is "
            f"seen here, which bftrainer up would need). {_NAMED}"
        )
    option = f" --partition {names[0]}" if len(names) > 1 else ""
    return f"Start your own: bftrainer up{option} (jobs of {names[0]} are preempted). {_NAMED}"


@functools.cache  # a verb on several trainers tells it of each
def partitions() -> tuple[str, ...]:
    """Return the partitions here whose jobs are preempted; none where that is not known."""
    if shutil.which(_ASKS) is None:
        return ()
    from bftrainer.site.own.plan import load  # noqa: PLC0415 - where there is a Slurm only

    with contextlib.suppress(BftError):
        return load("slurm").preemptable()
    return ()
