"""A login node may end a daemon that runs there for days; what the node says of itself tells it.

``look`` reads limits, settings of systemd and texts of the site, ``why_as_job`` judges them and is
pure. ``bftrainer up`` prints the reasons and proposes ``--as-job``; it never refuses.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# Less is too little for a daemon, which lives for days and starts a few commands a minute.
LEAST_CPU_TIME_S = 24 * 3600.0
LEAST_CPUS = 0.5
LEAST_MEMORY_BYTES = 1 << 30
LEAST_PROCESSES = 64

MOST_TEXT = 20_000  # characters of a file
MOST_QUOTED = 90  # of a site's sentence
TEXTS = (
    "etc/motd",
    "etc/motd.d/*",
    "run/motd",
    "run/motd.dynamic",
    "run/motd.d/*",
    "etc/issue.net",
)
SCRIPTS = ("etc/profile.d/*.sh", "etc/profile.d/*.csh")
LOGIND = ("etc/systemd/logind.conf", "etc/systemd/logind.conf.d/*.conf")
_GROUPS = "sys/fs/cgroup"
_LIMITS = ("cpu.max", "memory.max", "pids.max")
_LIMIT = re.compile(
    r"(?P<limit>[0-9]{1,19})(?: (?P<period>[0-9]{1,19}))?"
)  # kernel's cgroup-v2.rst

_WHAT = (
    r"\b(?:process(?:es)?|programs?|jobs?|tasks?|daemons?|sessions?|computations?|tmux|screen)\b"
)
_END = (
    r"\b(?:kill(?:s|ed)?|terminat(?:e[sd]?|ion)|stop(?:s|ped)|end(?:s|ed)|abort(?:s|ed)|"
    r"remov(?:es|ed)|cancel(?:s|led|ed)|clean(?:s|ed) up)\b"
)
_FORBID = (
    r"\b(?:not (?:allowed|permitted)|(?:must|may|should|do|ca|can)(?: ?not|n['\u2019]t)|forbidden|"
    r"prohibited|banned|against (?:the )?policy)\b"
)
_LONG = r"\blong|\bminutes?\b|\bhours?\b|\bpersistent\b|\bbackground\b|\bautomat"
_HOST = r"\b(?:login|head|front[- ]?end|access|submi(?:t|ssion))[- ]?(?:nodes?|hosts?|servers?)\b"
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n\s*[-*#]+\s*")
# A sentence is a rule if each pattern of a row is somewhere in it.
_RULES = (
    (_WHAT, _END, f"{_HOST}|{_LONG}"),
    (_WHAT, _FORBID, _HOST),
    (_WHAT, _FORBID, r"\blong[- ]?running\b"),
)
_HOSTS = re.compile(_HOST, re.IGNORECASE)
_MESSAGE = re.compile(r"""^\s*(?:echo|printf|print|cat\s*<<)\b\s*(.*)$""")
_KILLS = re.compile(r"^\s*KillUserProcesses\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_YES = frozenset({"yes", "true", "1", "on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginNode:
    """What a login node says of itself; None: it says no limit."""

    cpu_time_s: float | None = None  # of a process, RLIMIT_CPU
    cpus: float | None = None  # of all processes of the user
    memory_bytes: int | None = None  # likewise
    n_processes: int | None = None  # likewise
    ends_with_login: bool = False  # KillUserProcesses of systemd-logind
    texts: Mapping[str, str] = field(default_factory=dict)  # path -> what it tells users


def why_as_job(node: LoginNode) -> tuple[str, ...]:
    """Return a reason each why a daemon may not last on this node; none: nothing says so."""
    reasons: list[str] = []
    if node.ends_with_login:
        reasons.append("systemd ends your processes when you log out (KillUserProcesses=yes)")
    if node.cpu_time_s is not None and node.cpu_time_s < LEAST_CPU_TIME_S:
        minutes = f"{node.cpu_time_s / 60:g} min"
        reasons.append(f"a process is ended after {minutes} of CPU time (ulimit -t)")
    if node.cpus is not None and node.cpus < LEAST_CPUS:
        reasons.append(f"all your processes share {node.cpus:g} of a CPU (cpu.max)")
    if node.memory_bytes is not None and node.memory_bytes < LEAST_MEMORY_BYTES:
        size = f"{node.memory_bytes / (1 << 20):.0f} MiB"
        reasons.append(f"all your processes share {size} of memory (memory.max)")
    if node.n_processes is not None and node.n_processes < LEAST_PROCESSES:
        reasons.append(f"you may have {node.n_processes} processes and threads (pids.max)")
    for path, text in node.texts.items():
        sentence = rule_in(text)
        if sentence:
            reasons.append(f'{path} says "{sentence}"')
    return tuple(reasons)


def rule_in(text: str) -> str:
    """Return the first sentence that says that processes are ended or forbidden; "": none does."""
    for sentence in _SENTENCE.split(text):
        if any(_has_all(sentence, patterns) for patterns in _RULES):
            printable = re.sub(r"[^\x20-\x7e\u2019]", " ", sentence)
            words = " ".join(printable.split()).strip("*#=- ")
            if len(words) <= MOST_QUOTED:
                return words
            return f"{words[: MOST_QUOTED - 3].rstrip()}..."
    return ""


def _has_all(sentence: str, patterns: Iterable[str]) -> bool:
    return all(re.search(pattern, sentence, re.IGNORECASE) for pattern in patterns)


def messages(script: str) -> str:
    """Return what a script of /etc/profile.d prints, as far as it speaks of login nodes."""
    about_hosts: list[str] = []
    for line in script.splitlines():
        match = _MESSAGE.match(line)
        if match is None:
            continue
        message = match[1].strip("\"'")
        if _HOSTS.search(message):
            about_hosts.append(message)
    return "\n\n".join(about_hosts)


def look(root: Path = Path("/")) -> LoginNode:
    """Read what this node says; what cannot be read says nothing.

    Args:
        root: of its files.
    """
    soft_s, _ = resource.getrlimit(resource.RLIMIT_CPU)
    limits = dict[str, float]()
    for name, value in _limits(root):
        limits[name] = min(value, limits.get(name, value))
    memory, processes = limits.get("memory.max"), limits.get("pids.max")
    return LoginNode(
        cpu_time_s=None if soft_s == resource.RLIM_INFINITY else float(soft_s),
        cpus=limits.get("cpu.max"),
        memory_bytes=None if memory is None else int(memory),
        n_processes=None if processes is None else int(processes),
        ends_with_login=_ends_with_login(root),
        texts=_texts(root),
    )


def _ends_with_login(root: Path) -> bool:
    switch = ""
    for path in _paths(root, LOGIND):
        for setting in _KILLS.findall(_text(path)):
            switch = setting  # the last one counts
    return switch.lower() in _YES


def _texts(root: Path) -> dict[str, str]:
    """Return what users are told at a login, by path."""
    texts = {path: _text(path) for path in _paths(root, TEXTS)}
    for path in _paths(root, SCRIPTS):
        texts[path] = messages(_text(path))
    return {f"/{path.relative_to(root)}": text for path, text in texts.items() if text}


def limit_of(name: str, text: str) -> float | None:
    """Return a limit of cgroup v2: CPUs, bytes or processes; None: none is set, or it is odd."""
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        return None
    limit, period = float(match["limit"]), float(match["period"] or 0)
    if name != "cpu.max":
        return limit
    return limit / period if period else None


def _limits(root: Path) -> Iterator[tuple[str, float]]:
    """Yield the limits of our group and of those around it, such as the user's slice."""
    match = re.search(r"^0::(/.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    own_group = Path()
    if match is not None:
        own_group = Path(match[1].lstrip("/"))
    for group in (own_group, *own_group.parents):
        for name in _LIMITS:
            limit = limit_of(name, _text(root / _GROUPS / group / name))
            if limit is not None:
                yield name, limit


def _paths(root: Path, patterns: Iterable[str]) -> list[Path]:
    paths: list[Path] = []
    for pattern in patterns:
        paths += sorted(root.glob(pattern))
    return paths


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_TEXT)
    except OSError:
        return ""
