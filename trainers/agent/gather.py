"""Merges the messages of a trainer's workers on one node into one stream. Pure.

A node is ready, has entered or has left when all its workers are, have or did. Messages that
are the same on all workers are taken from the first. Called by ``trainers.agent.team``.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
ALL_SAY = frozenset({"Warm", "Ready", "Entered", "Left"})
FIRST_SAYS = frozenset({"Progress", "Reported", "Finished"})
FIRST = 0


class Gathered:
    """The newest body of each type from each of ``size`` workers."""

    def __init__(self, size: int) -> None:
        self._newest: list[dict[str, Body]] = [{} for _ in range(size)]
        self._interrupted = (-1, -1)  # the newest that was forwarded

    def said(self, local_rank: int, body: Body) -> Body | None:
        """Record a worker's message; return the node's message that follows, if any."""
        kind = body["type"]
        self._newest[local_rank][kind] = body
        if kind in ALL_SAY:
            return self._together(kind)
        if kind in FIRST_SAYS and local_rank != FIRST:
            return None
        if kind == "Progress":
            return self._progress(body)
        if kind == "Interrupted":
            if _number(body) <= self._interrupted:
                return None
            self._interrupted = _number(body)
        return body

    def has_said(self, local_rank: int, *kinds: str) -> bool:
        """Whether a worker has sent one of these."""
        return any(kind in self._newest[local_rank] for kind in kinds)

    def _together(self, kind: str) -> Body | None:
        said = [newest[kind] for newest in self._newest if kind in newest]
        if len(said) < len(self._newest):
            return None
        # Leavers may have seen different generations; they are in none of them.
        if kind != "Left" and len({_number(body) for body in said}) > 1:
            return None
        whole = dict(said[FIRST])
        for name in ("warm_up_s", "store_port", "pause_s", "transfer_s"):
            if name in whole:
                whole[name] = max(body[name] for body in said)
        return whole

    def _progress(self, body: Body) -> Body:
        """Return the first worker's report, with the own part of the slowest worker."""
        said = [newest.get("Progress", {}) for newest in self._newest]
        if any(one.get("generation") != body["generation"] for one in said):
            return {**body, "own_s": 0.0}  # not measured until all have reported
        measured = [one["own_s"] for one in said]
        return {
            **body,
            "own_s": max(measured) if all(measured) else 0.0,
            "share": sum(one["share"] for one in said),
        }


def _number(body: Body) -> tuple[int, int]:
    return (body.get("generation", 0), body.get("attempt", 0))
