"""What the workers of one trainer on this node say, as if they were one. Pure.

Bodies come in with the worker's local rank; those to be passed on to the daemon go out.
A node is ready, has entered or has left when all its workers are, have or did; the
first worker speaks for them where all would say the same. Called by
``trainers.agent.team``.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
ALL_SAY = frozenset({"Warm", "Ready", "Entered", "Left"})
FIRST_SAYS = frozenset({"Progress", "Finished"})
FIRST = 0


class Gathered:
    """The newest body of each type from each of ``size`` workers."""

    def __init__(self, size: int) -> None:
        self._newest: list[dict[str, Body]] = [{} for _ in range(size)]
        self._interrupted = (-1, -1)  # the newest that was passed on

    def said(self, local_rank: int, body: Body) -> Body | None:
        """Take in what a worker said; return what the node says now, if anything."""
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
        """Whether a worker has said one of these."""
        return any(kind in self._newest[local_rank] for kind in kinds)

    def _together(self, kind: str) -> Body | None:
        said = [newest[kind] for newest in self._newest if kind in newest]
        if len(said) < len(self._newest):
            return None
        # Who leaves may have heard of different generations: none of them is in either.
        if kind != "Left" and len({_number(body) for body in said}) > 1:
            return None
        whole = dict(said[FIRST])
        for name in ("warm_up_s", "store_port", "pause_s", "transfer_s"):
            if name in whole:
                whole[name] = max(body[name] for body in said)
        return whole

    def _progress(self, body: Body) -> Body:
        """Return the first worker's report with the node's part of a step: its slowest's."""
        said = [newest.get("Progress", {}) for newest in self._newest]
        if any(one.get("generation") != body["generation"] for one in said):
            return {**body, "own_s": 0.0}  # not measured as long as not all have
        measured = [one["own_s"] for one in said]
        return {
            **body,
            "own_s": max(measured) if all(measured) else 0.0,
            "share": sum(one["share"] for one in said),
        }


def _number(body: Body) -> tuple[int, int]:
    return (body.get("generation", 0), body.get("attempt", 0))
