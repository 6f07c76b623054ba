"""Finds out what the code of an error means.

An error is written once, where it is raised: the sentences are read from the source of the packages
as they are installed. ``codes.ini`` has what cannot be read there.
"""

from __future__ import annotations

import configparser
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from bftrainer.cli.sentences import CODE, Sentence, sentences
from bftrainer.model.errors import ExitCode, UsageError

PACKAGES = ("bftrainer", "lsf_adapters", "milp", "slurm_plugins", "trainers")
N_NEAR = 3
# The first two digits of a code -> of what it is, and the page that says more.
AREAS = {
    "10": ("command line and submission", "docs/reference/cli.md"),
    "11": ("daemon and API", "docs/reference/cli.md"),
    "12": ("batch systems", "docs/howto/slurm-site.md, docs/howto/lsf-site.md"),
    "13": ("messages, agents and runtimes", "docs/reference/failures.md"),
    "14": ("the script and its workers", "docs/reference/python-api.md"),
    "15": ("a site's service", "docs/howto/slurm-site.md"),
    "16": ("studies", "docs/howto/studies.md"),
    "21": ("policy files and decisions", "docs/reference/policy.md"),
    "22": ("the journal", "docs/howto/operate.md"),
    "30": ("problems and allocation policies", "docs/design/solver.md"),
    "40": ("traces and workloads", "docs/reference/traces.md"),
    "41": ("simulator and analysis", "docs/design/simulator.md"),
    "42": ("profiler", "docs/design/estimators.md"),
}
# Codes that were numbered elsewhere (they never change) -> the digits of the area they are of.
_MOVED = {
    **dict.fromkeys(("BFT-1017", "BFT-1018", "BFT-1542"), "30"),
    **dict.fromkeys(("BFT-1042", "BFT-1581", "BFT-1582", "BFT-2127"), "22"),
    **dict.fromkeys(("BFT-1333", "BFT-1450", "BFT-1451", "BFT-1454", "BFT-1457"), "10"),
    **dict.fromkeys(("BFT-1458", "BFT-1460", "BFT-1463", "BFT-1464", "BFT-1561"), "10"),
    **dict.fromkeys(("BFT-2128", "BFT-2129"), "10"),
    **dict.fromkeys(("BFT-1541", "BFT-1546"), "21"),
    **dict.fromkeys(("BFT-1549", "BFT-2124", "BFT-3070", "BFT-3071", "BFT-3072"), "41"),
    **dict.fromkeys((f"BFT-{number}" for number in (*range(1551, 1559), *range(1571, 1576))), "12"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The meaning of a code; words in capitals stand for what differs each time."""

    code: str
    area: str
    page: str
    causes: Mapping[str, Sequence[str]]  # next step -> the causes after which it is to be taken


def meaning_of(code: str) -> Meaning:
    """Return what a code means.

    Raises:
        UsageError: BFT-1070, there is no such code.
    """
    sources = texts()
    sources_of_code = [text for text in sources if code in text]
    if not sources_of_code:
        codes = sorted(set(CODE.findall("\n".join(sources))))
        near = sorted(codes, key=lambda other: abs(_number(other) - _number(code)))[:N_NEAR]
        raise UsageError(
            "BFT-1070",
            f"There is no error {code}.",
            f"The nearest are {', '.join(sorted(near))}.",
            exit_code=ExitCode.NOT_FOUND,
        )
    sentences_on_code = map(sentences, sources_of_code)
    return meanings(itertools.chain.from_iterable(sentences_on_code))[code]


def _number(code: str) -> int:
    return int(code.removeprefix("BFT-"))


def meanings(from_source: Iterable[Sentence]) -> dict[str, Meaning]:
    """Return what the codes mean of which something is said, and those of ``codes.ini``."""
    sentences_of = defaultdict[str, list[Sentence]](list)
    for sentence in from_source:
        sentences_of[sentence.code].append(sentence)
    extra = additions()
    meaning_by_code = dict[str, Meaning]()
    for code in sorted({*sentences_of, *extra.sections()}):
        area, page = AREAS[_MOVED.get(code, code[4:6])]
        causes = defaultdict[str, list[str]](list)
        for sentence in dict.fromkeys(_completed(code, sentences_of[code], extra)):
            causes[sentence.next_step].append(sentence.cause)
        meaning_by_code[code] = Meaning(code=code, area=area, page=page, causes=causes)
    return meaning_by_code


def _completed(
    code: str, from_source: Sequence[Sentence], extra: configparser.ConfigParser
) -> list[Sentence]:
    """Return the sentences about a code with what is added to them, without lines of logs."""
    cause = extra.get(code, "cause", fallback="")
    steps = [sentence.next_step for sentence in from_source if sentence.next_step]
    next_step = extra.get(code, "next", fallback=next(iter(steps), ""))
    complete = list[Sentence]()
    if cause:
        complete.append(Sentence(code=code, cause=cause, next_step=next_step))
    for sentence in from_source:
        # A line of a log is all that is said of some codes; elsewhere it only repeats.
        is_repetition = sentence.is_log and (steps or cause)
        if sentence.cause and not is_repetition:
            complete.append(replace(sentence, next_step=sentence.next_step or next_step))
    return complete


def additions() -> configparser.ConfigParser:
    """Return what cannot be read in the source."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string((files("bftrainer.cli") / "codes.ini").read_text(encoding="utf-8"))
    return parser


def texts() -> list[str]:
    """Return the source of each of our modules that names a code."""
    sources = list[str]()
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None:
            continue
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).rglob("*.py")):
                text = path.read_text(encoding="utf-8")
                if CODE.search(text):
                    sources.append(text)
    return sources
