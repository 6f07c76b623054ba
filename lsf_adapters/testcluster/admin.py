"""badmin: hosts and queues closed and opened, as an administrator does it."""

from __future__ import annotations

from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.request import Answer, Request

_QUEUE_VERBS = {
    "qopen": ("opened", 1),
    "qclose": ("closed", 2),
    "qact": ("activated", 3),
    "qinact": ("inactivated", 4),
}


def badmin(batch: Batch, request: Request) -> Answer:
    """Answer badmin."""
    verb, *words = request.argv[1:] or [""]
    if verb in ("hclose", "hopen"):
        return _hosts(batch, request, verb, words)
    if verb in _QUEUE_VERBS:
        return _queues(batch, request, verb, words)
    if verb == "ckconfig":
        return Answer(out="No errors found.\n\n", err="\nChecking configuration files ...\n\n")
    if verb in ("reconfig", "mbdrestart"):
        text = "No errors found.\n\nReconfiguration initiated\n"
        return Answer(out=text, err="\nChecking configuration files ...\n\n")
    return Answer(
        status=255,
        err=f"Invalid command <{verb}> \n\n"
        "Usage: badmin [-h] [-V] [command] [command_options] [command_args]\n",
    )


def _may(batch: Batch, request: Request) -> bool:
    return request.is_from(batch.config.parameters.administrators)


def _hosts(batch: Batch, request: Request, verb: str, names: list[str]) -> Answer:
    answer = Answer()
    comment = ""
    if names[:1] == ["-C"]:
        comment, names = names[1], names[2:]
    word = verb.removeprefix("h").capitalize()
    for name in names:
        host = batch.hosts.get(name)
        if host is None:
            answer.err += f"{name}: Bad host name, host group name or cluster name\n"
            answer.status = 255
        elif not _may(batch, request):
            answer.err += f"{word} <{name}> ...... Host control failed.: User permission denied\n"
            answer.status = 255
        else:
            host.is_closed = verb == "hclose"
            host.comment = comment
            answer.err += f"{word} <{name}> ...... done\n"  # as recorded
            code = 2 if host.is_closed else 1
            batch.events.control("HOST_CTRL", code, name, request.user, comment, batch.now_s())
    batch.touch_hosts()
    return answer


def _queues(batch: Batch, request: Request, verb: str, names: list[str]) -> Answer:
    answer = Answer()
    new_state, code = _QUEUE_VERBS[verb]
    for name in names:
        state = batch.queues.get(name)
        if state is None:
            answer.err += f"{name}: No such queue\n"
            answer.status = 255
        elif not _may(batch, request):
            answer.err += f"{name}: User permission denied\n"
            answer.status = 255
        else:
            if verb in ("qopen", "qclose"):
                state.is_open = verb == "qopen"
            else:
                state.is_active = verb == "qact"
            answer.out += f"Queue <{name}> is {new_state}\n"
            batch.events.control("QUEUE_CTRL", code, name, request.user, "", batch.now_s())
    batch.touch_hosts()
    return answer
