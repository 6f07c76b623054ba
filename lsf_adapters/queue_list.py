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
_END = re.compile(rf"^{table.DATE}: ((?:Exited|Done|Termination)[^\n]*)", re.MULTILINE)
_REASONS = re.compile(r"^ PENDING REASONS:\n((?: [^\n]*;?\n)+)", re.MULTILINE)
_SLOTS = re.compile(r", (\d{1,7})(?:-(\d{1,7}))? (?:Task\(s\)|Processors Requested)")
_RESOURCES = re.compile(r", Requested Resources <([^<>]*)>")
_HOSTS = re.compile(r", Specified Hosts ((?:<[^<>]+>(?:, )?)+)")
_DEPENDENCY = re.compile(r", Dependency Condition <([^\n]*?)>(?:,|;)")
_BEGIN = re.compile(rf", Specified Start Time <({table.DATE})>")
_IN_ANGLES = re.compile(r"<([^<>]+)>")
_LONG_HOST_COUNT = re.compile(r": \d+ hosts?;?$|;$")
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
_HOST_SEPARATOR = re.compile(r"[\s:]+")
_NOTHING = {"", "-"}


class LongForm:
    """The blocks of one answer, by job id; each is parsed when asked for."""

    def __init__(self, text: str, now_s: float) -> None:
        """Split the answer; raises ``ParseError``: it is cut off or contains no job."""
        blocks = list(table.blocks(text, _HEAD))
        if not blocks or not text.endswith("\n"):
            raise ParseError(f"no job, or cut off: {text[-60:]!r}")
        times = Counter(job_id for job_id, _ in blocks)
        self._now_s = now_s
        self._blocks: dict[str, str] = {}
        for job_id, block in blocks:
            # Of an id that is there twice, one head is a user's text.
            if times[job_id] == 1 and len(block) <= LONGEST_BLOCK:
                self._blocks[job_id] = block

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The ids of all jobs that can be read."""
        return tuple(self._blocks)

    def asked(self, job_id: str) -> LsfRequest | None:
        """Return a job's request; None: it is not in the answer, or cannot be read."""
        block = self._blocks.get(job_id)
        if block is None:
            return None
        submission = _SUBMITTED.search(block)
        if submission is None:
            return None
        words = submission[2]
        slots, slots_max = 1, 0
        if slot_range := _SLOTS.search(words):
            slots, slots_max = int(slot_range[1]), int(slot_range[2] or 0)
        limit_s: float | None = None
        if limit := _RUN_LIMIT.search(block):
            limit_s = 60.0 * float(limit[1])
        return LsfRequest(
            slots=slots,
            slots_max=slots_max,
            resources=_first(_RESOURCES, words),
            limit_s=limit_s,
            begin_s=self._time_s(_first(_BEGIN, words)),
            hosts=asked_hosts(_IN_ANGLES.findall(_first(_HOSTS, words))),
            is_exclusive=", Exclusive Execution" in words,
            dependency=_first(_DEPENDENCY, words),
            reasons=_long_reasons(block),
            is_held=words.startswith(" with hold"),
            start_s=self._time_s(_first(_WILL_START, block)),
            reserved=tuple(_IN_ANGLES.findall(_first(_RESERVED, block))),
        )

    def submit_s(self, job_id: str) -> float | None:
        """Return when it was submitted, to the second."""
        return self._time_s(_first(_SUBMITTED, self._blocks.get(job_id, "")))

    def start_s(self, job_id: str) -> float | None:
        """Return when it started, to the second."""
        return self._time_s(_first(_STARTED, self._blocks.get(job_id, "")))

    def how_ended(self, job_id: str) -> str:
        """Return the sentence about its end; "": there is none."""
        sentences = _END.findall(self._blocks.get(job_id, ""))
        if not sentences:
            return ""
        return str(sentences[-1]).strip()

    def _time_s(self, text: str) -> float | None:
        try:
            return table.epoch_s(text, self._now_s)
        except ParseError:
            return None


def _first(pattern: re.Pattern[str], text: str) -> str:
    """Return the first group of a pattern's first match; "": it does not match."""
    match = pattern.search(text)
    if match is None:
        return ""
    return match[1]


def _long_reasons(block: str) -> tuple[str, ...]:
    lines = map(str.strip, _first(_REASONS, block).split("\n"))
    return tuple(_LONG_HOST_COUNT.sub("", line) for line in lines if line)


def argv(form: str, job_ids: Sequence[str] = ()) -> tuple[str, ...]:
    """Query all unfinished jobs, or these, ended ones included; ``-w`` or ``-UF`` form."""
    if job_ids:
        return ("bjobs", "-a", form, *job_ids)
    return ("bjobs", "-u", "all", form)


def json_argv(
    refused: Collection[str], job_ids: Sequence[str] = (), *, name: str = ""
) -> tuple[str, ...]:
    """Query the same, or our jobs of a name, as JSON, without the fields that were refused."""
    fields = [*NEEDED, *(field for field in WANTED if field not in refused)]
    choice: tuple[str, ...] = ("-u", "all")
    if job_ids:
        choice = ("-a",)
    elif name:
        choice = ("-J", name)
    return ("bjobs", *choice, "-o", " ".join(fields), "-json", *job_ids)


def bad_field(done: process.Completed) -> str:
    """Return the field that the command refused; "": none of ``WANTED``."""
    name = _first(_BAD_FIELD, done.stderr).lower()
    if name not in WANTED:
        return ""
    return name


def is_empty(done: process.Completed) -> bool:
    """Return whether the command says that there is no job; its status is 254 or 255 then."""
    if done.timed_out or done.truncated:
        return False
    lines = said(done)
    return bool(lines) and all(map(_NO_JOB.search, lines)) and not printed(done).strip()


def unknown_ids(done: process.Completed) -> frozenset[str] | None:
    """Return the ids that are not found; None: the command failed for another reason."""
    if done.timed_out or done.truncated:
        return None
    job_ids = set()
    for line in said(done):
        match = _NOT_FOUND.search(line)
        if match is None:
            return None
        job_ids.add(match[1])
    return frozenset(job_ids)


def unknown_records(text: str) -> frozenset[str]:
    """Return the ids that are not found by ``bjobs -json``."""
    job_ids = set()
    for record in records(text, "bjobs"):
        if match := _NOT_FOUND.search(record.get("ERROR", "")):
            job_ids.add(match[1])
    return frozenset(job_ids)


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
    lines = filter(str.strip, text.split("\n"))
    for line in lines:
        if tuple(line.split()[: len(WIDE_HEAD)]) == WIDE_HEAD:
            break
    else:
        raise ParseError(f"no line begins with {' '.join(WIDE_HEAD)}: {text[:60]!r}")
    jobs = list(lines)  # what stands below the head
    return _each(jobs, lambda line: _wide_row(line, now_s), lambda line: line.split()[0], odd)


def _each(
    jobs: Sequence[S],
    read: Callable[[S], JobRow],
    id_of: Callable[[S], str],
    odd: list[str] | None,
) -> list[JobRow]:
    if odd is None:
        return list(map(read, jobs))

    def name_of(job: S) -> str:
        job_id = id_of(job)
        if not _ID.fullmatch(job_id):
            return ""
        return job_id

    return each(jobs, read, name_of, _unread, odd)


def _unread(job_id: str) -> JobRow:
    return JobRow(job_id=job_id, user="", state="", queue="", name="")


def _wide_row(line: str, now_s: float) -> JobRow:
    columns = _WIDE.fullmatch(line.rstrip())
    if columns is None:
        raise ParseError(f"not a job: {line[:60]!r}")
    job_id, user, state, queue, hosts, name, submit_time = columns.groups()
    if state not in STATES:
        raise ParseError(f"not a job: {line[:60]!r}")
    name = name.strip(" ")
    if index := _INDEX.fullmatch(name):
        job_id += index[1]
    return JobRow(
        job_id=job_id,
        user=user,
        state=state,
        queue=queue,
        name=name,
        hosts=hosts_of(hosts),
        submit_s=table.epoch_s(submit_time, now_s),
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
    jobs = [record for record in records(text, "bjobs") if "ERROR" not in record]
    return _each(jobs, lambda record: _json_row(record, now_s), _id_of, odd)


def _value(record: Record, name: str) -> str:
    """Return the value of a field of ``WANTED``; "" also where bjobs prints "-" for none."""
    value = record.get(name, "")
    if value in _NOTHING:
        return ""
    return value


def _id_of(record: Record) -> str:
    job_id, _, _ = record.get("JOBID", "").partition("[")
    index = _value(record, "JOBINDEX")
    if index in {"", "0"}:
        return job_id
    return f"{job_id}[{index}]"


def _json_row(record: Record, now_s: float) -> JobRow:
    if missing := [name for name in NEEDED if name.upper() not in record]:
        raise ParseError(f"a job without {missing[0]}")
    if not _ID.fullmatch(job_id := _id_of(record)):
        raise ParseError(f"not a job id: {record['JOBID'][:40]!r}")
    if record["STAT"] not in STATES:
        raise ParseError(f"not a state of a job: {record['STAT'][:40]!r}")
    return JobRow(
        job_id=job_id,
        user=record["USER"],
        state=record["STAT"],
        queue=record["QUEUE"],
        name=record["JOB_NAME"],
        hosts=hosts_of(record["EXEC_HOST"]),
        submit_s=table.epoch_s(record["SUBMIT_TIME"], now_s),
        start_s=_began_s(record, now_s),
        ended=_how_ended(record),
        asked=_request(record, now_s),
    )


def _how_ended(record: Record) -> str:
    words = []
    code = _value(record, "EXIT_CODE")
    if code not in {"", "0"}:
        words.append(f"exit code {code}")
    if reason := _value(record, "EXIT_REASON"):
        words.append(reason)
    return ", ".join(words)


def _began_s(record: Record, now_s: float) -> float | None:
    """Return the start: START_TIME has whole minutes, RUN_TIME whole seconds since it.

    RUN_TIME is a second and an answer's way too short, so that a job which started in the last
    moment of a minute seems to have started in the next one.
    """
    minute_s = table.epoch_s(record["START_TIME"], now_s)
    if minute_s is None or table.has_seconds(record["START_TIME"]):
        return minute_s
    runs_s = _number(record.get("RUN_TIME", ""))
    if runs_s is None:
        return minute_s
    began_s, end_s = now_s - runs_s, minute_s + table.MINUTE_S
    if not minute_s - SAME_START_S <= began_s <= end_s + SAME_START_S:
        return minute_s  # it was suspended for a time, which RUN_TIME leaves out
    return min(max(began_s, minute_s), end_s)


def _request(record: Record, now_s: float) -> LsfRequest:
    slots = _number(record.get("NREQ_SLOT", "")) or _number(record.get("MIN_REQ_PROC", "")) or 1
    limit_s = _number(record.get("RUNTIMELIMIT", ""))  # it is printed in minutes
    if limit_s is not None:
        limit_s *= 60.0
    hosts: list[str] = []
    if host_list := _value(record, "ASK_HOSTS"):
        hosts = _HOST_SEPARATOR.split(host_list.strip())
    reservations: tuple[str, ...] = ()
    if reservation := _value(record, "RSVID"):
        reservations = (reservation,)
    return LsfRequest(
        slots=int(slots),
        slots_max=int(_number(record.get("MAX_REQ_PROC", "")) or 0),
        resources=record.get("COMBINED_RESREQ", ""),
        limit_s=limit_s,
        begin_s=table.epoch_s(record.get("SPECIFIED_START_TIME", ""), now_s),
        hosts=asked_hosts(hosts),
        is_exclusive=record.get("EXCLUSIVE", "").upper() in {"Y", "YES"},
        gpus=int(_number(record.get("GPU_NUM", "")) or 0),
        is_gpu_use_told=_is_gpu_use_told(record),
        dependency=_value(record, "DEPENDENCY"),
        reservations=reservations,
        priority=_number(record.get("JOB_PRIORITY", "")) or 0.0,
        reasons=_reasons(record.get("PEND_REASON", "")),
        start_s=table.epoch_s(record.get("ESTIMATED_START_TIME", ""), now_s),
    )


def _is_gpu_use_told(record: Record) -> bool:
    """Return whether it is said how many GPUs a job uses: not if the field was refused."""
    number = record.get("GPU_NUM", "?").strip()
    if number in _NOTHING:  # none, unless it has them by a resource's name
        return "gpu" not in record.get("COMBINED_RESREQ", "").lower()
    return number.isdecimal()


def _number(text: str) -> float | None:
    number = _NUMBER.match(text.strip())
    if number is None:
        return None
    return float(number[1])


def _reasons(text: str) -> tuple[str, ...]:
    reasons = []
    for sentence in _REASON_SPLIT.split(text):
        reason = _HOST_COUNT.sub("", sentence.strip())
        if reason not in _NOTHING:
            reasons.append(reason)
    return tuple(reasons)


def reader(dialect: Dialect) -> Callable[[str, float], list[JobRow]]:
    """Return the parser of the dialect's list of jobs."""
    if dialect is Dialect.IBM:
        return json_rows
    return wide_rows
