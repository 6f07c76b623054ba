"""The bounds of YAML that anybody may have written, and the parser that keeps them.

Within them a policy or study is read in less than 0.1 s, whatever the text is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import Event
from ruamel.yaml.scanner import Scanner

MAX_BYTES = 64 * 1024  # the parser's time grows with the square of a long tag
MAX_TOKENS = 3_500  # of 16 to 24 us, by machine; a policy has some 60 settings of three
MAX_DEPTH = 4


class ExcessError(MarkedYAMLError):
    """There is more in the text than settings need; ``problem_mark`` says from where on."""

    def __init__(self, code: str, problem: str, next_step: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.code, self.next_step = code, next_step


class _BoundedScanner(Scanner):
    """Counts tokens and looks at brackets before the parser does.

    In case one of them begins a key, the parser waits for all tokens of the next 1,024 characters;
    that many open brackets took it 0.15 s.
    """

    _count = 0

    def fetch_more_tokens(self) -> Any:
        self._count += 1
        if self._count > MAX_TOKENS:
            raise ExcessError(
                "BFT-2104", "The file has too many entries.", "Shorten it.", self.reader.get_mark()
            )
        return super().fetch_more_tokens()

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803
        if len(self.indents) + self.flow_level >= MAX_DEPTH:
            raise too_deep(self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)

    def scan_yaml_directive_number(self, start_mark: Any) -> Any:
        # The parser asserts it (ruamel.yaml 0.19), and cannot read one of 4,300 digits.
        if self.reader.peek() not in "12" or self.reader.peek(1).isdigit():
            what = "its version is neither 1.1 nor 1.2"
            raise MarkedYAMLError(problem=what, problem_mark=start_mark)
        return super().scan_yaml_directive_number(start_mark)


def too_deep(mark: Any) -> ExcessError:
    """Return that lists and mappings are in each other too often."""
    return ExcessError("BFT-2106", "Too many brackets.", "Use plain values.", mark)


def events_of(text: str) -> Iterator[Event]:
    """Yield the parser's events; nothing is expanded or built.

    Raises:
        YAMLError: it is not YAML; ``ExcessError``: or too much of it.
    """
    reader = YAML(typ="safe", pure=True)
    reader.Scanner = _BoundedScanner
    yield from reader.parse(text)
