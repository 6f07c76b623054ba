"""Reads jobs from LSF: all unfinished ones, those of some ids, those of a name.

Called by ``snapshot`` and ``launcher``. Hides the dialects: ``queue_list`` has their commands and
parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from bftrainer.batch import process
from bftrainer.batch.clock import calendar_s
from bftrainer.batch.commands import PollCommands, UnreadError, why_failed
from bftrainer.model.hostlist import ParseError
from lsf_adapters import commands, queue_list, table
from lsf_adapters.commands import Dialect, LsfCommands, cluster_of, printed
from lsf_adapters.queue_list import SAME_START_S, LongForm
from lsf_adapters.requests import LOST, JobRow, LsfRequest


class JobReader:
    """Reads lists of jobs; remembers what the dialect is and what it cannot say."""

    def __init__(self, lsf: LsfCommands, clock: Callable[[], float] = calendar_s) -> None:
        self._lsf, self._clock = lsf, clock
        self._dialect: Dialect | None = None
        self.cluster = ""
        self._refused: set[str] = set()  # fields that this release does not know
        self._times: dict[str, tuple[float | None, float | None]] = {}  # submitted, started
        self._last_s: float | None = None  # when all jobs were last read
        self.odd: list[str] = []  # ids of jobs that could not be read the last time
        self.lost: frozenset[str] = frozenset()  # those whose host once did not answer

    def dialect(self) -> Dialect:
        """Return the dialect; UNKNOWN also if it cannot be read now."""
        try:
            return self.known_dialect()
        except UnreadError:
            return Dialect.UNKNOWN

    def known_dialect(self) -> Dialect:
        """Return the dialect, read once; raises ``UnreadError``: lsid does not tell it."""
        if self._dialect is None:
            text = self.answer(commands.LSID)
            try:
                self._dialect, self.cluster = Dialect.of(text), cluster_of(text)
            except ParseError as problem:
                raise UnreadError(f"lsid printed something unexpected: {problem}.") from problem
        return self._dialect

    def answer(self, argv: Sequence[str]) -> str:
        """Return what a command prints; raises ``UnreadError``: it failed."""
        return self.poll().answer(argv)

    def poll(self) -> PollCommands:
        """Begin a poll."""
        return PollCommands(self._lsf, system="LSF")

    def all(self) -> list[JobRow]:
        """Return the unfinished jobs of all users.

        Raises:
            UnreadError: they could not be read.
        """
        now_s, self.odd = self._clock(), []
        listed_rows, _ = self._rows((), now_s, self.odd)
        rows = []
        times = {}
        for listed_row in listed_rows:
            row = self._exact(listed_row, now_s)
            rows.append(row)
            times[row.job_id] = (row.submit_s, row.start_s)
        self._times, self._last_s = times, now_s
        return rows

    def by_id(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        """Return these jobs, ended ones included; unknown ids are missing.

        Raises:
            UnreadError: they could not be read.
        """
        now_s = self._clock()
        listed_rows, missing = self._rows(job_ids, now_s)
        row_of: dict[str, JobRow] = {}
        answered = set(missing)
        for row in listed_rows:
            row_of[row.job_id] = self._exact(row, now_s)
            array, _, _ = row.job_id.partition("[")
            answered |= {row.job_id, array}
        # Of each the answer says what it is, or that it is not found; else it is cut off.
        for job_id in job_ids:
            if job_id not in answered:
                raise UnreadError(f"bjobs says nothing of job {job_id}.")
        for job_id, row in row_of.items():
            self._times[job_id] = (row.submit_s, row.start_s)
        self.note_lost(row for job_id, row in row_of.items() if job_id in job_ids)
        return row_of

    def note_lost(self, rows: Iterable[JobRow]) -> None:
        """Remember which of our jobs are on a host that does not answer: they do not fail."""
        for row in rows:
            if row.state in LOST:
                self.lost |= {row.job_id}

    def named(self, name: str) -> list[JobRow]:
        """Return our unfinished jobs of a name; () also if they cannot be read."""
        argv: tuple[str, ...] = ("bjobs", "-w", "-J", name)
        if self.dialect() is Dialect.IBM:
            argv = queue_list.json_argv(self._refused, name=name)
        answer, now_s = self._lsf.query(argv), self._clock()
        parse = queue_list.reader(self.dialect())
        try:
            rows = parse(answer.stdout, now_s)
        except ParseError:
            return []
        return [row for row in rows if row.name == name]

    def reserved(self) -> Mapping[str, LsfRequest]:
        """Return requests of pending jobs with the slots reserved for them, as ``-UF`` tells both.

        Raises:
            UnreadError: it could not be read.
        """
        now_s = self._clock()
        answer = self._lsf.query(("bjobs", "-u", "all", "-p", "-UF"))
        if queue_list.is_empty(answer):
            return {}
        long = self._long(answer, now_s)
        request_of = {}
        for job_id in long.job_ids:
            request = long.asked(job_id)
            if request is not None:
                request_of[job_id] = request
        return request_of

    def _rows(
        self, job_ids: Sequence[str], now_s: float, odd: list[str] | None = None
    ) -> tuple[list[JobRow], frozenset[str]]:
        """Return jobs, and the ids that are not found."""
        is_ibm = self.known_dialect() is Dialect.IBM
        try:
            if is_ibm:
                return self._json_rows(job_ids, now_s, odd)
            return self._wide_rows(job_ids, now_s, odd)
        except UnreadError:
            raise
        except ParseError as problem:
            raise UnreadError(f"bjobs printed something unexpected: {problem}.") from problem

    def _json_rows(
        self, job_ids: Sequence[str], now_s: float, odd: list[str] | None
    ) -> tuple[list[JobRow], frozenset[str]]:
        while True:
            answer = self._lsf.query(queue_list.json_argv(self._refused, job_ids))
            field_name = queue_list.bad_field(answer)
            if not field_name or field_name in self._refused:
                break
            self._refused.add(field_name)
        if queue_list.is_empty(answer):
            return [], frozenset(job_ids)
        self._insist(answer, has_answer="{" in answer.stdout)
        rows = queue_list.json_rows(answer.stdout, now_s, odd)
        return rows, queue_list.unknown_records(answer.stdout)

    def _wide_rows(
        self, job_ids: Sequence[str], now_s: float, odd: list[str] | None
    ) -> tuple[list[JobRow], frozenset[str]]:
        answer = self._lsf.query(queue_list.argv("-w", job_ids))
        missing = queue_list.unknown_ids(answer) or frozenset()
        if queue_list.is_empty(answer):
            return [], frozenset(job_ids)
        if missing and not printed(answer).strip():
            return [], missing
        self._insist(answer, has_answer=bool(missing))
        rows = queue_list.wide_rows(answer.stdout, now_s, odd)
        long_answer = self._lsf.query(queue_list.argv("-UF", job_ids))
        if rows and not queue_list.is_empty(long_answer):
            rows = queue_list.with_requests(rows, self._long(long_answer, now_s))
        return rows, missing

    def _long(self, done: process.Completed, now_s: float) -> LongForm:
        self._insist(done, has_answer=bool(queue_list.unknown_ids(done)))
        return LongForm(done.stdout, now_s)

    def _insist(self, done: process.Completed, *, has_answer: bool) -> None:
        """Refuse a failed command; its status may be 255 although it answers."""
        if done.timed_out or done.truncated or not (done.returncode == 0 or has_answer):
            raise UnreadError(why_failed(done), is_away=self._lsf.is_away(done))

    def _exact(self, row: JobRow, now_s: float) -> JobRow:
        """Make times exact that LSF prints in whole minutes, and keep them the same."""
        known_submit_s, known_start_s = self._times.get(row.job_id, (None, None))
        submit_s, start_s = row.submit_s, row.start_s
        if known_submit_s is not None:
            submit_s = known_submit_s
        elif submit_s is not None and self._last_s is not None and submit_s % table.MINUTE_S == 0.0:
            # It was not there when all jobs were last read.
            minute_end_s = submit_s + table.MINUTE_S
            if submit_s <= self._last_s < minute_end_s:
                submit_s = min(now_s, minute_end_s - 1.0)
        if known_start_s is not None and start_s is not None:
            difference_s = abs(known_start_s - start_s)
            if difference_s <= SAME_START_S:
                start_s = known_start_s
        return replace(row, submit_s=submit_s, start_s=start_s)
