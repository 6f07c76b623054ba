"""Limit of the bytes that the verbs of one user have the daemon write within a day. Pure.

A submission or a change is refused (BFT-1086) when what it writes to the journal would go beyond
the policy's ``written_mb_per_day_per_user``. Cancelling is never refused: the submission has paid
for the trainer's end. What runs because the site has nodes (generations, rescales) is not counted;
reports of scripts are, and those beyond their share of each hour are kept in memory until the
trainer's next entry.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from bftrainer.journal.differences import LONGEST_CHAIN
from bftrainer.journal.texts import LONG_CHARS
from bftrainer.model.declaration import declarations
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from milp.problem import Curve

MB: Final = 1_000_000
HOUR_S: Final = 3600.0
# The present hour and those of a whole day before it: within any 24 hours the limit holds.
HOURS: Final = 25
RECORDS: Final = 4  # of a new trainer: its entry, the row of its state, its end, what stays of it
RECORD_BYTES: Final = 1_400  # beside texts, curves and lists
DECISIONS: Final = 2  # about a new trainer: that it is there, and that it is gone
DECISION_BYTES: Final = 1_500  # beside the trainer itself
DECIDED_BYTES: Final = 800  # of a trainer in a decision, beside texts and curves; deflated
USUAL_BYTES: Final = 2_500  # of a trainer in a decision: only beyond them its curve is long
POINT_BYTES: Final = 30  # of a curve
ESCAPED_BYTES: Final = 6  # of a character beyond ASCII, or one that JSON escapes
ITEM_BYTES: Final = 3  # beside a text: quotation marks and a comma
STANDING_SHARE: Final = 0.02  # of the limit; what decisions hold of a user's unfinished trainers
REPORTS_SHARE: Final = 0.25  # of the limit; of an hour: a 24th of it
TRIAL_BYTES: Final = 180
REFERENCE_BYTES: Final = 90
REPORT_BYTES: Final = 140
WORKER_BYTES: Final = 40
MOST_USERS: Final = 100_000  # that are read back

# ---- estimates: nothing is encoded, since a request may have a thousand trainers ----------------
_LONG_PARTS: Final = operator.attrgetter(
    *("environment", "args", "preamble", "curve", "utility", "after", "after_any"),
)


def decided_bytes(spec: TrainerSpec) -> int:
    """Return about how many bytes a decision that is written whole has of a trainer."""
    curves = _length(spec.curve) + _length(spec.utility)
    return DECIDED_BYTES + curves + sum(map(_length, _DECIDED_TEXTS(spec)))


def standing_bytes(specs: Iterable[TrainerSpec]) -> int:
    """Return about how many bytes a decision that is written whole has of a user's trainers."""
    return sum(map(decided_bytes, specs))


def submission_bytes(specs: Iterable[TrainerSpec], standing: int = 0) -> int:
    """Return about how many bytes trainers write from their submission to their cancellation.

    What is long is written once (``bftrainer.journal.texts``), also for all trainers together.

    Args:
        specs: of the trainers, which are submitted together.
        standing: ``standing_bytes`` of the user's unfinished trainers, these among them.
    """
    total, long_parts = DECISIONS * _decision_bytes(standing), set[object]()
    for spec in specs:
        total += RECORDS * _record_bytes(spec) + decided_bytes(spec) + DECISION_BYTES
        for part in _LONG_PARTS(spec):
            if _length(part) > LONG_CHARS:
                long_parts.add(part)
    return total + sum(map(_length, long_parts))


def change_bytes(record: TrainerRecord, standing: int = 0) -> int:
    """Return about how many bytes a change writes that leads to this record."""
    return written_bytes(record) + decided_bytes(record.spec) + _decision_bytes(standing)


def written_bytes(record: TrainerRecord) -> int:
    """Return about how many bytes an entry about a trainer has."""
    lists = REPORT_BYTES * len(record.reports) + WORKER_BYTES * len(record.workers)
    return _record_bytes(record.spec) + lists


def _record_bytes(spec: TrainerSpec) -> int:
    n_bytes = RECORD_BYTES + sum(map(_length, _TEXTS(spec)))
    if spec.trial is not None:
        n_bytes += TRIAL_BYTES + _length(spec.trial.parameters)
    for part in _LONG_PARTS(spec):
        length = _length(part)
        n_bytes += length if length <= LONG_CHARS else REFERENCE_BYTES
    return n_bytes


def _decision_bytes(standing: int) -> int:
    """Return what a decision writes, with its share of the next one that is written whole."""
    return DECISION_BYTES + standing // LONGEST_CHAIN


def _length(value: object) -> int:
    """Return about the length of a text, of texts in a tuple, or of a curve, as written."""
    if isinstance(value, str):
        is_plain = value.isascii() and '"' not in value and "\\" not in value
        return ITEM_BYTES + (1 if is_plain else ESCAPED_BYTES) * len(value)
    if isinstance(value, tuple):
        return ITEM_BYTES + sum(map(_length, value))
    if isinstance(value, Curve):
        return POINT_BYTES * len(value.sizes)
    return ITEM_BYTES


def _texts_of(*, is_decided: bool) -> Callable[[TrainerSpec], tuple[object, ...]]:
    names: list[str] = []
    for name, declaration in declarations(TrainerSpec).items():
        is_wanted = declaration.is_decided_with or not is_decided
        if is_wanted and declaration.longest_bytes is not None:
            names.append(name)
    return operator.attrgetter(*names)


_DECIDED_TEXTS: Final = _texts_of(is_decided=True)
_TEXTS: Final = _texts_of(is_decided=False)


def _spoken(wait_s: float) -> str:
    minutes = max(1, math.ceil(wait_s / 60.0))
    if minutes < 120:
        return f"{minutes} min"
    return f"{math.ceil(minutes / 60)} h"


class Volume:
    """Bytes by user and hour."""

    def __init__(self, limit_mb: Callable[[], float], clock: Callable[[], float]) -> None:
        """Limit them; the limit may change. ``clock``: seconds since the epoch."""
        self._limit_mb, self._clock = limit_mb, clock
        self._bytes: dict[str, dict[int, int]] = {}  # of the user, by hour since the epoch
        self._reports: dict[str, tuple[int, int]] = {}  # of the user: an hour, and its bytes
        self.changes = 0  # grows with every addition

    def check(self, user: str, more_bytes: int) -> None:
        """Refuse a verb that would write too much.

        Raises:
            UsageError: BFT-1086, with the time at which there is room again.
        """
        limit_bytes, used_bytes = self._limit_bytes(), self.used_bytes(user)
        if used_bytes + more_bytes <= limit_bytes:
            return
        wait_s = self._wait_s(user, used_bytes + more_bytes - limit_bytes)
        when = "There is no room for it at any time: ask for less at once, or"
        if math.isfinite(wait_s):
            when = f"Try again in {_spoken(wait_s)}; or"
        raise UsageError(
            "BFT-1086",
            f"Verbs of {user} have written {used_bytes / MB:.1f} MB within a day, this one would"
            f" write {more_bytes / MB:.2f} MB more, and the policy's limit is"
            f" {limit_bytes / MB:g} MB (written_mb_per_day_per_user).",
            f"{when} put long variables and arguments into files that the script reads. Trainers"
            " go on, and 'bftrainer cancel' is always possible.",
            exit_code=ExitCode.REFUSED_BY_POLICY,
        )

    def check_curves(self, user: str, specs: Iterable[TrainerSpec]) -> None:
        """Refuse trainers whose long curves each decision that is written whole would hold.

        Such decisions follow also when others' jobs come and go, for as long as the trainers are
        there.

        Raises:
            UsageError: BFT-1086.
        """
        limit_bytes = STANDING_SHARE * self._limit_bytes()
        standing = sum(n_bytes for n_bytes in map(decided_bytes, specs) if n_bytes > USUAL_BYTES)
        if standing > limit_bytes:
            raise UsageError(
                "BFT-1086",
                f"The unfinished trainers of {user} would have {standing / MB:.2f} MB of curves,"
                f" names and paths in decisions; the limit is {limit_bytes / MB:g} MB, a fiftieth"
                " of written_mb_per_day_per_user.",
                "Give curves of fewer points, or wait until trainers have ended.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )

    def add(self, user: str, n_bytes: int) -> None:
        """Count bytes of a verb that was carried out."""
        hours, hour = self._of(user), self._hour()
        hours[hour] = hours.get(hour, 0) + n_bytes
        self._bytes[user] = hours
        self.changes += 1

    def takes_report(self, record: TrainerRecord) -> bool:
        """Count a report of a trainer if it may be written now; False: it has to wait."""
        user, hour = record.spec.user, self._hour()
        n_bytes = written_bytes(record)
        counted_hour, counted_bytes = self._reports.get(user, (hour, 0))
        if counted_hour != hour:
            counted_bytes = 0
        if counted_bytes + n_bytes > REPORTS_SHARE * self._limit_bytes() / (HOURS - 1):
            return False
        self._reports[user] = (hour, counted_bytes + n_bytes)
        self.add(user, n_bytes)
        return True

    def used_bytes(self, user: str) -> int:
        """Return what counts of a user at present."""
        return sum(self._of(user).values())

    def _of(self, user: str) -> dict[int, int]:
        """Return the hours of a user that count; those after the present were of a wrong clock."""
        hour = self._hour()
        hours: dict[int, int] = {}
        for past_hour, n_bytes in self._bytes.get(user, {}).items():
            if past_hour > hour - HOURS:
                at_hour = min(past_hour, hour)
                hours[at_hour] = hours.get(at_hour, 0) + n_bytes
        return hours

    def _wait_s(self, user: str, excess_bytes: float) -> float:
        """Return the time until so much no longer counts; infinite: never."""
        for hour, n_bytes in sorted(self._of(user).items()):
            excess_bytes -= n_bytes
            if excess_bytes <= 0:
                return (hour + HOURS) * HOUR_S - self._clock()
        return math.inf

    def _limit_bytes(self) -> float:
        return self._limit_mb() * MB

    def _hour(self) -> int:
        return math.floor(self._clock() / HOUR_S)

    # ---- across restarts ------------------------------------------------------------------

    def plain(self) -> dict[str, dict[str, int]]:
        """Return what counts, by user and hour, for a file."""
        by_user = {user: self._of(user) for user in self._bytes}
        self._bytes = {user: hours for user, hours in by_user.items() if hours}
        plain: dict[str, dict[str, int]] = {}
        for user, hours in self._bytes.items():
            plain[user] = {str(hour): n_bytes for hour, n_bytes in hours.items()}
        return plain

    def resume(self, plain: Mapping[str, Mapping[str, int]]) -> None:
        """Go on from what another object returned.

        Raises:
            ValueError: it is not of that form.
            TypeError: likewise.
            AttributeError: likewise.
        """
        resumed: dict[str, dict[int, int]] = {}
        for user, hours in list(plain.items())[:MOST_USERS]:
            resumed[user] = {int(hour): max(0, int(hours[hour])) for hour in list(hours)[:HOURS]}
        self._bytes = resumed
