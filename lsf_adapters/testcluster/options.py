"""The command line of bsub, in both dialects, read without knowing the cluster.

``parse`` turns arguments and a script into ``Options`` or raises bsub's own refusal. The server
and the hooks beside a command use it; standard library only. IBM's bsub refuses an option that it
does not know; volclava's takes words by single letters, so that a typo is a job.
"""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import dataclass, field

_FLAGS = frozenset({"x", "H", "r", "N", "B", "I", "K", "Ip", "Is", "Zs", "h", "V"})
_VALUED = frozenset(
    {*"LcFWkPqRmnJbtuioeMDSfwEas", "Jd", "is", "Ep", "sp", "pack"},
)
_IBM_FLAGS = _FLAGS | {"rn", "ti", "IS", "ISp", "ISs", "IX", "Ne", "XF", "ar", "ul"}
_IBM_VALUED = (_VALUED - {"Zs"}) | {
    *("app", "cwd", "We", "sla", "env", "gpu", "G", "U", "g", "eo", "oo", "outdir", "wt", "wa"),
    *("Q", "C", "T", "v", "p", "sp", "hl", "network", "rcacct"),
    *("ptl", "eptl", "hostfile", "freq", "data", "notify", "K1", "ext", "Lp"),
}
_MAX_NAME = 512
_ARRAY = re.compile(r"(.*)\[([0-9,:-]+)\](%[0-9]+)?", re.DOTALL)
_SECTIONS = frozenset({"select", "order", "rusage", "span", "same", "cu", "affinity"})  # of -R
_SPAN = re.compile(r"span\[([^\]]*)\]")


class RefusedError(Exception):
    """Raised where bsub refuses; its text is bsub's, and what it has put on standard output."""

    def __init__(self, text: str, *, out: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.out = out


@dataclass(slots=True, kw_only=True)
class Options:
    """The options of a command line; mutable while it is read."""

    values: dict[str, str] = field(default_factory=dict)  # by letter; flags have ""
    command: str = ""
    script: str = ""  # what the shell will run
    is_from_stdin: bool = False
    # Read from the values by ``_interpret``:
    name: str = ""
    indices: tuple[int, ...] = ()
    min_slots: int = 1
    max_slots: int = 1
    ptile: int = 0
    is_one_host: bool = False
    limit_s: float | None = None
    begin_s: float | None = None
    term_s: float | None = None
    hosts: tuple[str, ...] = ()
    gpus: int = 0

    def has(self, letter: str) -> bool:
        """Return whether the option was given."""
        return letter in self.values


def parse(argv: list[str], stdin: str, *, is_ibm: bool, now_s: float) -> Options:
    """Read a command line, or the script on standard input if it names no command.

    Raises:
        RefusedError: bsub does not accept it.
    """
    options = Options()
    command_words = _read(argv, options.values, is_ibm=is_ibm)
    if command_words:
        # Words are joined by blanks and given to a shell, as bsub does.
        options.script = options.command = " ".join(command_words)
    else:
        _take_script(options, stdin, is_ibm=is_ibm)
    _interpret(options, now_s)
    return options


def _take_script(options: Options, stdin: str, *, is_ibm: bool) -> None:
    lines = stdin.splitlines()
    embedded: dict[str, str] = {}
    for line in lines:
        if line.startswith("#BSUB"):
            words = shlex.split(line[5:], comments=True)
            _read(words, embedded, is_ibm=is_ibm)
    options.values = {**embedded, **options.values}
    body = [line for line in lines if line.strip() and not line.startswith("#BSUB")]
    if not body:
        raise RefusedError("No command is specified")
    options.script = stdin.removesuffix("\n") + "\n"
    options.command = ";".join(body)[:_MAX_NAME]
    options.is_from_stdin = True


def _read(argv: list[str], values: dict[str, str], *, is_ibm: bool) -> list[str]:
    """Take the options from the front of the words; return the others."""
    valued = _IBM_VALUED if is_ibm else _VALUED
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if not is_ibm and word.startswith("--"):
            continue  # as recorded: it is dropped, and what follows is the command
        if word == "--":
            break
        name, value = _split(word[1:], is_ibm=is_ibm)
        if name in valued:
            if not value:
                if not words:
                    raise RefusedError(f"bsub: option requires an argument -- {name}")
                value = words.pop(0)
        elif value:
            raise RefusedError(f"bsub: option cannot have an argument -- {name}")
        if name == "R" and "R" in values:  # several requirements add up
            value = f"{values['R']} {value}"
        values[name] = value
    return words


def _split(word: str, *, is_ibm: bool) -> tuple[str, str]:
    """Return option and attached value: "n4" is -n 4."""
    options = _FLAGS | _VALUED
    if is_ibm:
        options = _IBM_FLAGS | _IBM_VALUED
    if word in options:
        return word, ""
    letters = word[:1]
    if letters not in options:
        raise RefusedError(f"bsub: invalid option -- '{letters}'")
    if is_ibm and len(word) > 1 and not re.match(r"[0-9/.%\"']", word[1:]):
        raise RefusedError(f"{word}: Illegal option")
    return letters, word[1:]


def _interpret(options: Options, now_s: float) -> None:
    values = options.values
    if "s" in values and not values["s"].isdigit():
        raise RefusedError(f"{values['s']}: Illegal signal value", out="-s option is set\n")
    if "c" in values:
        _minutes(values["c"], "CPULIMIT")
    if "W" in values:
        options.limit_s = _minutes(values["W"], "RUNLIMIT") * 60.0
    if "n" in values:
        options.min_slots, options.max_slots = _slots(values["n"])
    if "R" in values:
        _requirement(options, values["R"])
    if "b" in values:
        options.begin_s = _moment(values["b"], now_s)
    if "t" in values:
        options.term_s = _moment(values["t"], now_s)
        if options.term_s <= now_s:
            raise RefusedError(f"{values['t']}: Bad time specification")
    if "m" in values:
        options.hosts = tuple(word.partition("+")[0] for word in values["m"].split())
    if "gpu" in values:
        options.gpus = 1
        if number := re.search(r"num=([0-9]+)", values["gpu"]):
            options.gpus = int(number[1])
    _name(options)


def _name(options: Options) -> None:
    name = options.values.get("J", "").replace("\n", "")
    if len(name.encode()) > _MAX_NAME - 1:
        raise RefusedError("Bad job name")
    options.name = name
    if array := _ARRAY.fullmatch(name):
        options.indices = _indices(array[2])
        options.name = array[1]


def _indices(text: str) -> tuple[int, ...]:
    indices: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?", part)
        if span is None:
            raise RefusedError("Bad job name")
        first, last, step = int(span[1]), int(span[2] or span[1]), int(span[3] or 1)
        if first < 1 or last < first or step < 1:
            raise RefusedError("Bad job name")
        indices += range(first, last + 1, step)
    return tuple(dict.fromkeys(indices))


def _minutes(text: str, what: str) -> int:
    time_part = text.partition("/")[0]
    limit = re.fullmatch(r"(?:([0-9]+):)?([0-9]+)", time_part)
    if limit is None:
        raise RefusedError(f"{text}: Bad {what} specification")
    hours, minutes = int(limit[1] or 0), int(limit[2])
    return hours * 60 + minutes


def _slots(text: str) -> tuple[int, int]:
    numbers = re.fullmatch(r"([0-9]+)(?:,([0-9]+))?", text)
    if numbers is None:
        raise RefusedError("Bad argument for option -n")
    min_slots, max_slots = int(numbers[1]), int(numbers[2] or numbers[1])
    if not 1 <= min_slots <= max_slots:
        raise RefusedError("Bad argument for option -n")
    return min_slots, max_slots


def _requirement(options: Options, text: str) -> None:
    sections = re.findall(r"([a-z]+)\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]", text)
    if text.count("[") != text.count("]") or not _SECTIONS.issuperset(sections):
        raise RefusedError("Bad resource requirement syntax")
    if span := _SPAN.search(text):
        options.ptile = 0
        options.is_one_host = "hosts=1" in span[1]
        if ptile := re.search(r"ptile=([0-9]+)", span[1]):
            options.ptile = int(ptile[1])
            if options.ptile < 1:
                raise RefusedError("Bad resource requirement syntax")


def _moment(text: str, now_s: float) -> float:
    """Read [[[year:]month:]day:]hour:minute, the next such moment."""
    words = text.split(":")
    if not 2 <= len(words) <= 5 or not all(map(str.isdigit, words)):
        raise RefusedError(f"{text}: Bad time specification")
    numbers = list(map(int, words))
    now = time.localtime(now_s)
    today = [now.tm_year, now.tm_mon, now.tm_mday]
    *date, hour, minute = numbers
    year, month, day = [*today[: 3 - len(date)], *date]
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour <= 23 and minute <= 59):
        raise RefusedError(f"{text}: Bad time specification")
    moment = time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))
    if moment < now_s - 60 and len(numbers) == 2:
        moment = time.mktime((year, month, day + 1, hour, minute, 0, 0, 0, -1))
    return moment
