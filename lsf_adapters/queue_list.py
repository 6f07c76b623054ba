"""``bjobs``: the unfinished jobs, single ones by id, and the long form.

Job name, command and paths are users' text and stand in the same lines, unescaped. So only what
concerns the request of that very job is read here; id, user, state and queue come from ``bjobs
-w``, whose columns before the name no user can write. A job that appears twice is not read.
Source: bjobs(1), option -UF (one line per statement, never wrapped).

volclava lists all hosts of a job in ``bjobs -w`` alone (its JSON has the first one), and a job's
request in ``-UF`` alone. LSF 10.1 has both in ``bjobs -o ... -json``; fields that a fix pack does
not know are left out after it has named them. Sources: bjobs(1) of volclava 2.2; "bjobs -o" of LSF
10.1 (documented, not tried).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from bftrainer.batch import process
from bftrainer.model.hostlist import ParseError
from lsf_adapters import table
from lsf_adapters.commands import Dialect, printed, said
from lsf_adapters.requests import STATES, JobRow, LsfRequest, asked_hosts, hosts_of
from lsf_adapters.table import Record, S, each, records

SAME_START_S = 2.5  # RUN_TIME is counted in whole seconds
LONGEST_BLOCK = 1 << 16  # characters; one is longer than that by its user's texts alone
_HEAD = re.compile(r"^Job <(\d{1,10}(?:\[\d{1,10}\])?)>, ", re.MULTILINE)
_SUBMITTED = re.compile(rf"^({table.DATE}): Submitted from host <[^>]*>(.*)$", re.MULTILINE)
_STARTED = re.compile(rf"^({table.DATE}): (?:Started|\[\d+\] started) ", re.MULTILINE)
_RESERVED = re.compile(
    rf"^{table.DATE}: Reserved <\d+> (?:job )?slots? on host\(s\) ((?:<[^<>\n]+> ?)+)",
    re.MULTILINE,
)
_WILL_START = re.compile(rf"^({table.DATE}): (?:Will be started|Estimated)", re.MULTILINE)
_RUN_LIMIT = re.compile(r"^ RUNLIMIT *\n (\d{1,9}(?:\.\d+)?) min", re.MULTILINE)
_REASONS = re.compile(r"^ PENDING REASONS:\n((?: [^\n]*;?\n)+)", re.MULTILINE)
_SLOTS = re.compile(r", (\d{1,7})(?:-(\d{1,7}))? (?:Task\(s\)|Processors Requested)")
_RESOURCES = re.compile(r", Requested Resources <([^<>]*)>")
_HOSTS = re.compile(r", Specified Hosts ((?:<[^<>]+>(?:, )?)+)")
_DEPENDENCY = re.compile(r", Dependency Condition <([^\n]*?)>(?:,|;)")
_BEGIN = re.compile(rf", Specified Start Time <({table.DATE})>")
_IN_ANGLES = re.compile(r"<([^<>]+)>")
_LONG_HOST_COUNT = re.compile(r": \d+ hosts?;?$|;$")


class LongForm:
    """The blocks of one answer, by job id; each is parsed when asked for."""

    def __init__(self, text: str, now_s: float) -> None:
        """Split the answer; raises ``ParseError``: it is cut off or contains no job."""
        heads = list(_HEAD.finditer(text))
        if not heads or not text.endswith("\n"):
            raise ParseError(f"no job, or cut off: {text[-60:]!r}")
        ends = [*(head.start() for head in heads[1:]), len(text)]
        times = Counter(head[1] for head in heads)
        self._now_s = now_s
        self._blocks = {
            head[1]: text[head.end() : end]
            for head, end in zip(heads, ends, strict=True)
            if times[head[1]] == 1 and end - head.end() <= LONGEST_BLOCK
        }

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The ids of all jobs that can be read."""
        return tuple(self._blocks)

    def asked(self, job_id: str) -> LsfRequest | None:
        """Return a job's request; None: it is not in the answer, or cannot be read."""
        block = self._blocks.get(job_id)
        said = None if block is None else _SUBMITTED.search(block)
        if block is None or said is None:
            return None
        words, slots = said[2], _SLOTS.search(said[2])
        reserved, limit = _RESERVED.search(block), _RUN_LIMIT.search(block)
        return LsfRequest(
            slots=int(slots[1]) if slots else 1,
            slots_max=int(slots[2] or 0) if slots else 0,
            resources=_first(_RESOURCES, words),
            limit_s=60.0 * float(limit[1]) if limit else None,
            begin_s=self._time_s(_first(_BEGIN, words)),
            hosts=asked_hosts(_IN_ANGLES.findall(_first(_HOSTS, words))),
            is_exclusive=", Exclusive Execution" in words,
            dependency=_first(_DEPENDENCY, words),
            reasons=_long_reasons(block),
            is_held=words.startswith(" with hold"),
            start_s=self._time_s(_first(_WILL_START, block)),
            reserved=tuple(_IN_ANGLES.findall(reserved[1])) if reserved else (),
        )

    def submit_s(self, job_id: str) -> float | None:
        """Return when it was submitted, to the second."""
        return self._time_s(_first(_SUBMITTED, self._blocks.get(job_id, "")))

    def start_s(self, job_id: str) -> float | None:
        """Return when it started, to the second."""
        return self._time_s(_first(_STARTED, self._blocks.get(job_id, "")))

    def how_ended(self, job_id: str) -> str:
        """Return the sentence about its end; "": there is none."""
        found = re.findall(
            rf"^{table.DATE}: ((?:Exited|Done|Termination)[^\n]*)",
            self._blocks.get(job_id, ""),
            re.MULTILINE,
        )
        return found[-1].strip() if found else ""

    def _time_s(self, text: str) -> float | None:
        try:
            return table.epoch_s(text, self._now_s)
        except ParseError:
            return None


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _long_reasons(block: str) -> tuple[str, ...]:
    found = _REASONS.search(block)
    lines = found[1].split("\n") if found else []
    return tuple(_LONG_HOST_COUNT.sub("", line.strip()) for line in lines if line.strip())


WIDE_HEAD = ("JOBID", "USER", "STAT", "QUEUE", "FROM_HOST", "EXEC_HOST", "JOB_NAME")
_WIDE = re.compile(
    r"(\d{1,10}) +(\S+) +([A-Z]+) +(\S+) +\S+ +(\S+) (.*) ([A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d)"
)
_ID = re.compile(r"\d{1,10}(?:\[\d{1,10}\])?")
_INDEX = re.compile(r".*(\[\d{1,10}\])", re.DOTALL)
_NO_JOB = re.compile(r"No (?:unfinished |matching )?job found")
_NOT_FOUND = re.compile(r"Job <(\d+(?:\[\d+\])?)> is not found")
_BAD_FIELD = re.compile(r"<([A-Z_]+)[^<>]*> in the format string is not a valid field name")

NEEDED = (
    *("jobid", "jobindex", "user", "stat", "queue", "job_name", "exec_host"),
    *("submit_time", "start_time"),
)
WANTED = (
    *("run_time", "runtimelimit", "nreq_slot", "min_req_proc", "max_req_proc", "combined_resreq"),
    *("ask_hosts", "exclusive", "dependency", "rsvid", "job_priority", "estimated_start_time"),
    *("specified_start_time", "pend_reason", "gpu_num", "exit_reason", "exit_code"),
)
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d+)?)")
_REASON_SPLIT = re.compile(r"[;\n]")
_HOST_COUNT = re.compile(r":\s*\d+\s*hosts?\s*\Z")
_NOTHING = {"", "-"}


def argv(form: str, job_ids: Sequence[str] = ()) -> tuple[str, ...]:
    """Query all unfinished jobs, or these, ended ones included; ``-w`` or ``-UF`` form."""
    return ("bjobs", *(("-a",) if job_ids else ("-u", "all")), form, *job_ids)


def json_argv(
    refused: Collection[str], job_ids: Sequence[str] = (), *, name: str = ""
) -> tuple[str, ...]:
    """Query the same, or our jobs of a name, as JSON, without the fields that were refused."""
    fields = " ".join((*NEEDED, *(one for one in WANTED if one not in refused)))
    which = ("-a",) if job_ids else ("-J", name) if name else ("-u", "all")
    return ("bjobs", *which, "-o", fields, "-json", *job_ids)


def bad_field(done: process.Completed) -> str:
    """Return the field that the command refused; "": none of ``WANTED``."""
    found = _BAD_FIELD.search(done.stderr)
    name = found[1].lower() if found else ""
    return name if name in WANTED else ""


def is_empty(done: process.Completed) -> bool:
    """Return whether the command says that there is no job; its status is 254 or 255 then."""
    if done.timed_out or done.truncated:
        return False
    lines = said(done)
    return bool(lines) and all(map(_NO_JOB.search, lines)) and not printed(done).strip()


def unknown_ids(done: process.Completed) -> frozenset[str] | None:
    """Return the ids that are not found; None: the command failed for another reason."""
    found = [_NOT_FOUND.search(line) for line in said(done)]
    if done.timed_out or done.truncated or not all(found):
        return None
    return frozenset(one[1] for one in found if one)


def unknown_records(text: str) -> frozenset[str]:
    """Return the ids that are not found by ``bjobs -json``."""
    found = [_NOT_FOUND.search(one["ERROR"]) for one in records(text, "bjobs") if "ERROR" in one]
    return frozenset(one[1] for one in found if one)


def wide_rows(text: str, now_s: float, odd: list[str] | None = None) -> list[JobRow]:
    """Parse ``bjobs -w``.

    Args:
        text: its output.
        now_s: when it was asked.
        odd: gets the id of each job that cannot be read, which is there without a state; None:
            there must be none.

    Raises:
        ParseError: it is not what ``bjobs`` prints, or cut off.
    """
    if not text.endswith("\n"):
        raise ParseError(f"the output is empty or cut off: {text[-60:]!r}")
    lines = [line for line in text.split("\n") if line.strip()]
    heads = [i for i, line in enumerate(lines) if tuple(line.split()[:7]) == WIDE_HEAD]
    if not heads:
        raise ParseError(f"no line begins with {' '.join(WIDE_HEAD)}: {text[:60]!r}")
    lines = lines[heads[0] + 1 :]
    return _each(lines, lambda line: _wide_row(line, now_s), lambda line: line.split()[0], odd)


def _each(
    jobs: Sequence[S],
    read: Callable[[S], JobRow],
    id_of: Callable[[S], str],
    odd: list[str] | None,
) -> list[JobRow]:
    if odd is None:
        return list(map(read, jobs))

    def name_of(job: S) -> str:
        return found if _ID.fullmatch(found := id_of(job)) else ""

    return each(jobs, read, name_of, _unread, odd)


def _unread(job_id: str) -> JobRow:
    return JobRow(job_id=job_id, user="", state="", queue="", name="")


def _wide_row(line: str, now_s: float) -> JobRow:
    found = _WIDE.fullmatch(line.rstrip())
    if found is None or found[3] not in STATES:
        raise ParseError(f"not a job: {line[:60]!r}")
    job_id, user, state, queue, hosts, name, submitted = found.groups()
    name = name.strip(" ")
    index = _INDEX.fullmatch(name)
    return JobRow(
        job_id=job_id + (index[1] if index else ""),
        user=user,
        state=state,
        queue=queue,
        name=name,
        hosts=hosts_of(hosts),
        submit_s=table.epoch_s(submitted, now_s),
    )


def with_requests(rows: Sequence[JobRow], long: LongForm) -> list[JobRow]:
    """Add what ``-UF`` says of each job."""
    return [
        replace(
            row,
            asked=long.asked(row.job_id),
            submit_s=long.submit_s(row.job_id) or row.submit_s,
            start_s=long.start_s(row.job_id),
            ended=long.how_ended(row.job_id),
        )
        for row in rows
    ]


def json_rows(text: str, now_s: float, odd: list[str] | None = None) -> list[JobRow]:
    """Parse ``bjobs -o ... -json``; ids that are not found are left out. ``odd`` as above.

    Raises:
        ParseError: it is not that.
    """
    found = [one for one in records(text, "bjobs") if "ERROR" not in one]
    return _each(found, lambda one: _json_row(one, now_s), _id_of, odd)


def _id_of(one: Record) -> str:
    index = one.get("JOBINDEX", "")
    job_id = one.get("JOBID", "").partition("[")[0]
    return job_id if index in {*_NOTHING, "0"} else f"{job_id}[{index}]"


def _json_row(one: Record, now_s: float) -> JobRow:
    if missing := [name for name in NEEDED if name.upper() not in one]:
        raise ParseError(f"a job without {missing[0]}")
    if not _ID.fullmatch(job_id := _id_of(one)):
        raise ParseError(f"not a job id: {one['JOBID'][:40]!r}")
    if one["STAT"] not in STATES:
        raise ParseError(f"not a state of a job: {one['STAT'][:40]!r}")
    return JobRow(
        job_id=job_id,
        user=one["USER"],
        state=one["STAT"],
        queue=one["QUEUE"],
        name=one["JOB_NAME"],
        hosts=hosts_of(one["EXEC_HOST"]),
        submit_s=table.epoch_s(one["SUBMIT_TIME"], now_s),
        start_s=_began_s(one, now_s),
        ended=_how_ended(one),
        asked=_asked(one, now_s),
    )


def _how_ended(one: Record) -> str:
    code, reason = one.get("EXIT_CODE", ""), one.get("EXIT_REASON", "")
    words = [] if code in {*_NOTHING, "0"} else [f"exit code {code}"]
    return ", ".join((*words, *(() if reason in _NOTHING else (reason,))))


def _began_s(one: Record, now_s: float) -> float | None:
    """Return the start: START_TIME has whole minutes, RUN_TIME whole seconds since it.

    RUN_TIME is a second and an answer's way too short, so that a job which started in the last
    moment of a minute seems to have started in the next one.
    """
    minute_s = table.epoch_s(one["START_TIME"], now_s)
    if minute_s is None or table.has_seconds(one["START_TIME"]):
        return minute_s
    runs_s = _number(one.get("RUN_TIME", ""))
    if runs_s is None:
        return minute_s
    began_s, end_s = now_s - runs_s, minute_s + table.MINUTE_S
    if not minute_s - SAME_START_S <= began_s <= end_s + SAME_START_S:
        return minute_s  # it was suspended for a time, which RUN_TIME leaves out
    return min(max(began_s, minute_s), end_s)


def _asked(one: Record, now_s: float) -> LsfRequest:
    def read(name: str, of: Callable[[str], float | None]) -> float | None:
        said = one.get(name.upper(), "")
        return None if said in _NOTHING else of(said)

    slots = _number(one.get("NREQ_SLOT", "")) or _number(one.get("MIN_REQ_PROC", "")) or 1
    limit_minutes = read("runtimelimit", _number)
    priority, gpus = read("job_priority", _number), read("gpu_num", _number)
    hosts, dependency = one.get("ASK_HOSTS", ""), one.get("DEPENDENCY", "")
    rsvid = one.get("RSVID", "")
    return LsfRequest(
        slots=int(slots),
        slots_max=int(_number(one.get("MAX_REQ_PROC", "")) or 0),
        resources=one.get("COMBINED_RESREQ", ""),
        limit_s=None if limit_minutes is None else 60.0 * limit_minutes,
        begin_s=read("specified_start_time", lambda said: table.epoch_s(said, now_s)),
        hosts=asked_hosts([] if hosts in _NOTHING else re.split(r"[\s:]+", hosts.strip())),
        is_exclusive=one.get("EXCLUSIVE", "").upper() in {"Y", "YES"},
        gpus=int(gpus or 0),
        is_gpu_use_told=_is_gpu_use_told(one),
        dependency="" if dependency in _NOTHING else dependency,
        reservations=() if rsvid in _NOTHING else (rsvid,),
        priority=priority or 0.0,
        reasons=_reasons(one.get("PEND_REASON", "")),
        start_s=read("estimated_start_time", lambda said: table.epoch_s(said, now_s)),
    )


def _is_gpu_use_told(one: Record) -> bool:
    """Return whether it is said how many GPUs a job uses: not if the field was refused."""
    number = one.get("GPU_NUM", "?").strip()
    if number in _NOTHING:  # none, unless it has them by a resource's name
        return "gpu" not in one.get("COMBINED_RESREQ", "").lower()
    return number.isdecimal()


def _number(text: str) -> float | None:
    found = _NUMBER.match(text.strip())
    return float(found[1]) if found else None


def _reasons(text: str) -> tuple[str, ...]:
    words = [_HOST_COUNT.sub("", one.strip()) for one in _REASON_SPLIT.split(text)]
    return tuple(word for word in words if word not in _NOTHING)


def reader(dialect: Dialect) -> Callable[[str, float], list[JobRow]]:
    """Return the parser of the dialect's list of jobs."""
    return json_rows if dialect is Dialect.IBM else wide_rows
