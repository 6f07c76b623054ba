"""The answer to bsub: a job that is accepted, or LSF's own refusal.

``verbs`` calls ``accept`` with what the command sent; the sentences are the recorded ones.
"""

from __future__ import annotations

import pwd
from dataclasses import replace

from lsf_adapters.testcluster import dependency, moments
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.config import Queue
from lsf_adapters.testcluster.options import Options, RefusedError, parse
from lsf_adapters.testcluster.request import Answer, Request
from lsf_adapters.testcluster.state import Job

_MAX_ARRAY = 1000
_NOT_SUBMITTED = ". Job not submitted."


def bsub(batch: Batch, request: Request) -> Answer:
    """Answer bsub."""
    try:
        job, notes = _accept(batch, request)
    except RefusedError as refusal:
        end = _NOT_SUBMITTED
        if refusal.text.startswith("bsub:"):
            end = "\nUsage: bsub [options] command [argument ...]"
        return Answer(status=255, out=refusal.out, err=f"{refusal.text}{end}\n")
    kind = "default queue" if job.is_default_queue else "queue"
    return Answer(out=f"Job <{job.id}> is submitted to {kind} <{job.queue}>.\n", err=notes)


def _accept(batch: Batch, request: Request) -> tuple[Job, str]:
    config = batch.config
    if request.uid == 0 and not config.root_may_submit:
        raise RefusedError("User permission denied")
    now_s = batch.now_s()
    options = parse(
        request.argv[1:],
        request.stdin.decode(errors="surrogateescape"),
        is_ibm=config.is_ibm,
        now_s=now_s,
    )
    _change(options, request.extra)
    queue = _queue(batch, options, request)
    limit_s = _limit_s(options, queue)
    _check_size(batch, options, queue)
    if condition := options.values.get("w", ""):
        dependency.check(condition, batch.jobs.values(), request.user)
    account = pwd.getpwuid(request.uid)
    job_id = batch.next_id()
    job = Job(
        id=job_id,
        name=options.name or options.command,
        is_named=options.has("J"),
        user=account.pw_name,
        uid=request.uid,
        gid=request.gid,
        home=account.pw_dir,
        queue=queue.name,
        is_default_queue="q" not in options.values,
        project=options.values.get("P", "default"),
        command=options.command,
        login_shell=options.values.get("L", ""),
        min_slots=options.min_slots,
        max_slots=options.max_slots,
        ptile=options.ptile,
        is_one_host=options.is_one_host,
        res_req=options.values.get("R", ""),
        ask_hosts=list(options.hosts),
        is_exclusive=options.has("x"),
        gpus=options.gpus,
        limit_s=limit_s,
        begin_s=options.begin_s,
        term_s=options.term_s,
        dependency=condition,
        is_held=options.has("H"),
        is_rerunnable=(options.has("r") or queue.is_rerunnable) and not options.has("rn"),
        output=options.values.get("o", options.values.get("oo", "")),
        error=options.values.get("e", options.values.get("eo", "")),
        input=options.values.get("i", options.values.get("is", "")),
        cwd=options.values.get("cwd", request.cwd),
        umask=request.umask,
        submit_s=now_s,
        state="PSUSP" if options.has("H") else "PEND",
    )
    environment = request.environment
    if options.values.get("env") == "none":
        environment = {}
    batch.add(_elements(job, options), options.script, environment)
    return job, _notes(job)


def _notes(job: Job) -> str:
    """Return what bsub says of a job with a time."""
    notes = (("scheduled after", job.begin_s), ("terminated by", job.term_s))
    return "".join(
        f"Job will be {words} {moments.long(moment_s, has_year=True)}\n"
        for words, moment_s in notes
        if moment_s is not None
    )


def _elements(job: Job, options: Options) -> list[Job]:
    if not options.indices:
        return [job]
    if len(options.indices) > _MAX_ARRAY:
        raise RefusedError("Bad job name")
    spec = options.values["J"].replace("\n", "")
    return [
        replace(job, index=index, name=f"{options.name}[{index}]", array_spec=spec)
        for index in options.indices
    ]


def _change(options: Options, extra: list[str]) -> None:
    """Apply what an esub changed."""
    names = {
        "LSB_SUB_PROJECT_NAME": "P",
        "LSB_SUB_QUEUE": "q",
        "LSB_SUB_JOB_NAME": "J",
    }
    for line in extra:
        name, _, value = line.partition("=")
        if letter := names.get(name):
            options.values[letter] = value.strip('"')
            if letter == "J":
                options.name = options.values["J"]


def _queue(batch: Batch, options: Options, request: Request) -> Queue:
    queues = batch.config.all_queues
    names = options.values.get("q", "").split()
    if names:
        name, *_ = names
        if name not in batch.queue_of:
            raise RefusedError(f"{name}: No such queue")
        queue = batch.queue_of[name]
    else:
        queue = next((queue for queue in queues if queue.is_default), queues[0])
    if queue.users and request.user not in queue.users:
        raise RefusedError(f"{queue.name}: User cannot use the queue")
    if not batch.queues[queue.name].is_open:
        raise RefusedError(f"{queue.name}: Queue has been closed")
    if options.has("x") and not queue.allows_exclusive:
        raise RefusedError(f"{queue.name}: Queue does not accept exclusive jobs")
    return queue


def _limit_s(options: Options, queue: Queue) -> float | None:
    limit_s = options.limit_s
    if limit_s is None:
        return queue.default_limit_s or queue.max_limit_s
    if queue.max_limit_s is not None and limit_s > queue.max_limit_s:
        raise RefusedError("RUNLIMIT: Cannot exceed queue's hard limit(s)")
    return limit_s


def _check_size(batch: Batch, options: Options, queue: Queue) -> None:
    for name in options.hosts:
        if name not in batch.hosts and name not in ("all", "others"):
            raise RefusedError(f"{name}: Bad host name, host group name or cluster name")
    queue_hosts = queue.hosts or tuple(batch.hosts)
    if options.hosts and not set(options.hosts) & set(queue_hosts):
        raise RefusedError(f"{options.hosts[0]}: Host or host group is not used by the queue")
    slots = sum(host.slots for host in batch.hosts.values() if host.name in queue_hosts)
    if options.min_slots > slots:
        raise RefusedError("Too many processors requested")
