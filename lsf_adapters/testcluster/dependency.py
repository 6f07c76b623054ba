"""Dependency conditions of bsub -w: done, ended, exit and started, with !, &&, || and brackets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from lsf_adapters.testcluster.options import RefusedError
from lsf_adapters.testcluster.state import Job

_TOKEN = re.compile(r"&&|\|\||!|[()]|\"[^\"]*\"|[^\s()!&|\"]+")
_TESTS: dict[str, Callable[[Job], bool]] = {
    "done": lambda job: job.state == "DONE",
    "ended": lambda job: job.is_finished,
    "exit": lambda job: job.state == "EXIT",
    "started": lambda job: not job.is_pending,
}


def check(condition: str, jobs: Iterable[Job], user: str) -> None:
    """Refuse a condition that cannot be read, or names a job which does not exist.

    Raises:
        RefusedError: as bsub says it.
    """
    _Reader(condition, list(jobs), user).whole(is_checked=True)


def is_satisfied(condition: str, jobs: Iterable[Job], user: str) -> bool:
    """Return whether a job with this condition may start; one whose jobs are forgotten may not."""
    try:
        return _Reader(condition, list(jobs), user).whole(is_checked=False)
    except RefusedError:
        return False


class _Reader:
    """Reads and evaluates one condition."""

    def __init__(self, condition: str, jobs: list[Job], user: str) -> None:
        self._condition = condition
        self._tokens = _TOKEN.findall(condition)
        self._jobs = jobs
        self._user = user
        self._is_checked = False

    def whole(self, *, is_checked: bool) -> bool:
        self._is_checked = is_checked
        result = self._disjunction()
        if self._tokens:
            raise self._bad()
        return result

    def _bad(self) -> RefusedError:
        return RefusedError(f"{self._condition}: Bad dependency condition")

    def _take(self, token: str) -> bool:
        if self._tokens[:1] != [token]:
            return False
        self._tokens.pop(0)
        return True

    def _disjunction(self) -> bool:
        result = self._conjunction()
        while self._take("||"):
            result = self._conjunction() or result  # both are read, so that both are checked
        return result

    def _conjunction(self) -> bool:
        result = self._term()
        while self._take("&&"):
            result = self._term() and result
        return result

    def _term(self) -> bool:
        if self._take("!"):
            return not self._term()
        if self._take("("):
            result = self._disjunction()
            if not self._take(")"):
                raise self._bad()
            return result
        if not self._tokens:
            raise self._bad()
        word = self._tokens.pop(0)
        if word in _TESTS and self._take("("):
            if not self._tokens:
                raise self._bad()
            name = self._tokens.pop(0)
            if not self._take(")"):
                raise self._bad()
            return self._holds(_TESTS[word], name)
        return self._holds(_TESTS["done"], word)

    def _holds(self, test: Callable[[Job], bool], word: str) -> bool:
        name, _, _ = word.strip('"').partition(",")
        jobs = [job for job in self._jobs if self._is_meant(job, name)]
        if not jobs and self._is_checked:
            raise RefusedError(f"{name}: No matching job found")
        return bool(jobs) and all(map(test, jobs))

    def _is_meant(self, job: Job, name: str) -> bool:
        """Return whether a name is that of a job: anybody's by its id, the user's own by name."""
        if name.isdigit():
            return str(job.id) == name
        return job.user == self._user and name in (job.name, job.key)
