"""Faults on order: answers that are spoiled, hosts and daemons that die.

``cluster`` asks for them with the command ``_fault``, which only the server's own user may use.
"""

from __future__ import annotations

import signal

from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.request import Answer, Request

SPOILS = frozenset({"truncated", "empty", "garbage", "localised", "chatter", "error"})
"""Ways to spoil an answer."""
_CHATTER = "Cannot connect to LSF. Please wait ...\n"
_WORDS = {"RUN": "LÄUFT", "PEND": "WARTET", "ok": "bereit", "closed": "geschlossen"}
_MONTHS = {"Nov": "Nov.", "Dec": "Dez.", "May": "Mai", "Oct": "Okt.", "Mar": "März"}


class Faults:
    """The faults of one cluster; they are lost when the server dies."""

    def __init__(self) -> None:
        self._spoils: dict[str, str] = {}

    def order(self, batch: Batch, request: Request) -> Answer:
        """Carry out an order of the test."""
        verb, *words = request.argv[1:]
        if verb == "spoil":
            command, how = words
            self._spoils[command] = how
            if how == "none":
                del self._spoils[command]
        elif verb != "ping":
            _host(batch, verb, words)
        return Answer()

    def spoil(self, answer: Answer, command: str) -> Answer:
        """Return the answer as the ordered fault makes it."""
        how = self._spoils.get(command)
        if how in SPOILS:
            return as_spoiled(answer, how)
        return answer


def as_spoiled(answer: Answer, how: str) -> Answer:
    """Return an answer spoiled in one of ``SPOILS``."""
    match how:
        case "truncated":
            return Answer(out=answer.out[: len(answer.out) // 2], err=answer.err)
        case "empty":
            return Answer()
        case "garbage":
            return Answer(out="\x00\x01{[}]\x7f \udcff\n" * 3)
        case "localised":
            return Answer(status=answer.status, out=_localised(answer.out), err=answer.err)
        case "chatter":
            return Answer(status=answer.status, out=_CHATTER + answer.out, err=answer.err)
    return Answer(status=255, err="Failed in an LSF library call: Internal error\n")


def _localised(text: str) -> str:
    for english, german in {**_WORDS, **_MONTHS}.items():
        text = text.replace(english, german)
    return text


def _host(batch: Batch, verb: str, words: list[str]) -> None:
    host = batch.hosts[words[0]]
    now_s = batch.now_s()
    if verb == "kill_sbatchd":
        host.sbatchd_dead_s = now_s
    elif verb == "kill_host":
        host.sbatchd_dead_s = host.lim_dead_s = now_s
        if words[1:] == ["processes"]:
            for job in batch.live.values():
                if job.holds_slots and host.name in job.hosts:
                    batch.runner.send(job, signal.SIGKILL)
    elif verb == "fail_start":
        host.failing_starts += 1
    elif verb == "start_host":
        if batch.host_status(host) == "unavail":
            host.back_s = now_s + batch.config.profile.host_back_s
        host.sbatchd_dead_s = host.lim_dead_s = None
    batch.touch_hosts()
