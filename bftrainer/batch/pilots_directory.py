"""The visibility of the pilots' directory from nodes, as far as this host can tell.

A pilot whose output file cannot be opened ends before any process of ours runs, and the cause is in
the log of the node's batch daemon only.
"""

from __future__ import annotations

from pathlib import Path

from bftrainer.model.site import Finding, Measured, Weight


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
    return (
        Finding(
            code="BFT-1315",
            weight=Weight.LOSS,
            setting=f"pilots_dir: {directory}",
            cost="It is on the disk that holds this host's system, and nodes are other hosts: if "
            "they do not see it, each pilot ends at once, and only the log of its node says why.",
            remedy="pilots_dir: a directory that all nodes see and only the daemon's account can "
            "write, in the policy",
        ),
    )
