"""The table of commands and the functions that answer them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from lsf_adapters.testcluster import (
    admin,
    control,
    show_cluster,
    show_hosts,
    show_jobs,
    show_queues,
    submission,
)
from lsf_adapters.testcluster.arguments import BadArgumentError
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.config import Dialect
from lsf_adapters.testcluster.request import Answer, Request

Verb = Callable[[Batch, Request], Answer]

_VERBS: Mapping[str, Verb] = {
    "badmin": admin.badmin,
    "bhosts": show_hosts.bhosts,
    "bjobs": show_jobs.bjobs,
    "bkill": control.bkill,
    "bmod": control.bmod,
    "bparams": show_cluster.bparams,
    "bqueues": show_queues.bqueues,
    "brequeue": control.brequeue,
    "bresume": control.bresume,
    "bstop": control.bstop,
    "bsub": submission.bsub,
    "busers": show_queues.busers,
    "lshosts": show_hosts.lshosts,
    "lsid": show_cluster.lsid,
    "lsload": show_hosts.lsload,
}
_IBM_VERBS: Mapping[str, Verb] = {"brsvs": show_hosts.brsvs, "bslots": show_hosts.bslots}


def verbs(dialect: Dialect) -> Mapping[str, Verb]:
    """Return the commands that a dialect has."""
    if dialect == "ibm":
        return {**_VERBS, **_IBM_VERBS}
    return _VERBS


def answer(batch: Batch, request: Request) -> Answer:
    """Answer one call of a command; times are those of its time zone."""
    verb = verbs(batch.config.dialect)[request.verb]
    _use_zone(request.environment.get("TZ"))
    if "-V" in request.argv[1:2] and request.verb != "badmin":
        return Answer(err=show_cluster.BANNERS[batch.config.dialect] + "\n")
    try:
        return verb(batch, request)
    except BadArgumentError as problem:
        return Answer(status=problem.status, err=problem.text.removesuffix("\n") + "\n")


def _use_zone(name: str | None) -> None:
    if name == os.environ.get("TZ"):
        return
    if name is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = name
    time.tzset()
