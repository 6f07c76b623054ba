"""Checks that every submitted spec must pass, and limits per user. Pure.

A ``TrainerSpec`` passes or is refused with BFT-1002, BFT-1007, BFT-1015, BFT-1016, BFT-1032,
BFT-1040, BFT-1041, BFT-1044, BFT-1060, BFT-1066, BFT-1080, BFT-1561 or BFT-1603. The command line
checks before it sends, the server checks again. A notification (``submit --notify``) is
``mail:ADDRESS``, or a command line whose first word is an absolute path; no shell reads it.

Each trainer makes every decision a little slower and adds to the journal; without a limit one
user's loop would delay everyone. No user is exempt: today all trainers belong to the daemon's own
user, and a loop run by root costs as much.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from bftrainer.decide.throughput.plausibility import FASTEST, LEAP, SLOWEST
from bftrainer.model.columns import counted
from bftrainer.model.container import (
    AUTO,
    RUNTIMES,
    image_fault,
    mounts_of,
    outside,
    text_of,
)
from bftrainer.model.declaration import declarations
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.node_request import NodeRequest, request_of
from bftrainer.model.parts import Lend
from bftrainer.model.preamble import fault_of
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.model.trainer_spec import MAX_STRING_BYTES, NOTIFIED
from milp.problem import Curve

MAIL = "mail:"
# In the order of preference, and how each takes an address.
MAILERS = ("/usr/sbin/sendmail", "/usr/lib/sendmail", "/usr/bin/mail", "/usr/bin/mailx")
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?\Z")
_MOST_REASON = 1000  # characters
MAX_NODES = 1_000_000
MAX_TOTAL_BYTES = 128 * 1024  # of all strings together
MAX_ARGUMENTS = 2048
MAX_VARIABLES = 1024
MAX_POINTS = 1000  # of a curve; every decision reads it
MAX_SIZES = 64  # of a set of sizes; likewise
MAX_AFTER = 1000  # trainers that one waits for
MOST_TRIALS = 10**6
MOST_BUDGET = 10**15  # of a trial, in its unit
WAITING_TIMES = 10  # with those at their rungs, so many times the limit
GROUP = 50  # trials in one request that cost about as much as a submission
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # categories Cc and Cs of Unicode
_TRAINER_ID = re.compile(r"t[0-9]{1,18}\Z", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+:-]{0,63}\Z")
_MINUTE_S = 60.0


def notification_fault(notify: str) -> str:
    """Say what is wrong with a notification; "": nothing."""
    if not notify:
        return ""
    if notify.startswith(MAIL):
        address = notify.removeprefix(MAIL)
        if _ADDRESS.match(address):
            return ""
        return f"has the address {address[:60]!r}"
    try:
        words = shlex.split(notify)
    except ValueError as problem:
        return f"cannot be split into words: {problem}"
    if words and words[0].startswith("/"):
        return ""
    return "does not begin with an absolute path"


def variables(record: TrainerRecord) -> dict[str, str]:
    """Return what a command is told of a trainer that has ended."""
    return {
        "BFT_TRAINER_ID": record.trainer_id,
        "BFT_TRAINER_NAME": record.spec.name,
        "BFT_TRAINER_STATE": record.state.value,
        "BFT_TRAINER_REASON": record.reason[:_MOST_REASON],
    }


def command_of(record: TrainerRecord, mailer: str) -> tuple[tuple[str, ...], str]:
    """Return the command to run when a trainer has ended, and its standard input."""
    notify = record.spec.notify
    if not notify.startswith(MAIL):
        return tuple(shlex.split(notify)), ""
    address = notify.removeprefix(MAIL)
    subject = f"bftrainer: {record.trainer_id} ({record.spec.name}) {record.state.value}"
    if mailer.endswith("sendmail"):
        text = f"To: {address}\nSubject: {subject}\n\n{record.reason}\n"
        return (mailer, "-i", address), text
    return (mailer, "-s", subject, address), f"{record.reason}\n"


def check_spec(spec: TrainerSpec) -> None:
    """Refuse a spec that no daemon could run.

    Raises:
        UsageError: one of those codes, naming the field at fault.
    """
    _check_counts(spec)
    check_strings(spec)
    check_sizes(spec.n_min, spec.n_max, spec.sizes, spec.size_option)
    if spec.curve is not None:
        check_curve(spec.curve)
    if spec.utility is not None:
        _check_points(spec.utility)
    _check_numbers(spec)
    _check_paths(spec)
    _check_gpus(spec)
    check_account(spec.account)
    check_preamble(spec.preamble)
    check_container(spec)
    check_notify(spec.notify, spec.notify_at)
    check_output(spec.output)
    check_trial(spec)


def check_account(account: str) -> None:
    """Refuse what cannot be the name of an account (BFT-1561)."""
    if account and not _ACCOUNT.match(account):
        raise UsageError(
            "BFT-1561",
            f"{account[:64]!r} cannot be the name of an account.",
            "Write --account NAME; 'sacctmgr show associations user=$USER' lists yours.",
        )


def check_trial(spec: TrainerSpec) -> None:
    """Refuse a malformed identity of a trial (BFT-1603)."""
    tag, budget = spec.trial, spec.budget
    if tag is None:
        return
    cause = ""
    if not _STUDY.match(tag.study):
        cause = f"{tag.study[:64]!r} cannot be the id of a study"
    elif not (0 <= tag.number <= MOST_TRIALS and 0 <= tag.attempt <= MOST_TRIALS):
        cause = f"Trial and attempt must be numbers from 0 to {MOST_TRIALS}"
    elif tag.most is not None and (budget is None or not budget <= tag.most <= MOST_BUDGET):
        cause = "A trial whose budget may grow has a budget not above its full one"
    elif not _is_object(tag.parameters):
        cause = f"Its parameters are not a JSON object of at most {MAX_STRING_BYTES} bytes"
    if cause:
        raise UsageError(
            "BFT-1603", f"{cause}.", "Submit trials with 'bftrainer study run STUDY.yaml SCRIPT'."
        )


def _is_object(text: str) -> bool:
    if len(text.encode(errors="replace")) > MAX_STRING_BYTES or _CONTROL.search(text):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def read_request(gres: str, constraint: str, gpus_per_unit: int = 0) -> NodeRequest:
    """Return the request for every node, or for GPUs of nodes.

    Raises:
        UsageError: BFT-1040, the request is malformed.
    """
    try:
        return request_of(gres, constraint, gpus_per_unit=gpus_per_unit)
    except ValueError as problem:
        raise UsageError(
            "BFT-1040",
            f"The node request is malformed: {problem}.",
            "Write --gres gpu:TYPE:COUNT and --constraint 'A&(B|C)'; sizes are --nodes.",
        ) from problem


def _check_gpus(spec: TrainerSpec) -> None:
    n_gpus = read_request(spec.gres, spec.constraint, spec.gpus_per_unit).n_gpus
    if n_gpus % spec.workers_per_node and spec.gpus_per_unit:
        raise UsageError(
            "BFT-1041",
            f"{counted(spec.workers_per_node, 'worker')} cannot share"
            f" {counted(n_gpus, 'GPU')} evenly.",
            "Write --gpus-per-node K, where K is a multiple of --workers-per-node: the workers"
            " share the K GPUs.",
        )
    if n_gpus % spec.workers_per_node:
        raise UsageError(
            "BFT-1041",
            f"{spec.workers_per_node} workers on a node cannot share {n_gpus} GPUs evenly.",
            "Make --workers-per-node a divisor of the GPUs in --gres.",
        )


def check_preamble(text: str) -> None:
    """Refuse a preamble that is too long or not text (BFT-1060)."""
    if fault := fault_of(text):
        raise UsageError(
            "BFT-1060",
            f"The preamble {fault}.",
            "Write a shell file in UTF-8; long work belongs into files that it calls.",
        )


def check_container(spec: TrainerSpec) -> None:
    """Refuse a container whose image, mounts or runtime are malformed (BFT-1080)."""
    fault = ""
    if spec.container:
        fault = image_fault(spec.container)
    try:
        mounts_of(spec.container_mounts)
    except ValueError as problem:
        fault = fault or str(problem)
    if spec.container_runtime not in (AUTO, *RUNTIMES):
        fault = f"there is no runtime {spec.container_runtime[:60]!r}"
    if not spec.container and (spec.container_mounts or spec.container_runtime != AUTO):
        fault = "mounts and runtime of a container are given, and no image"
    if fault:
        raise UsageError(
            "BFT-1080",
            f"The container cannot be as asked for: {fault}.",
            "Write --container IMAGE, --container-mounts SRC[:DST[:ro]][,...] and"
            f" --container-runtime {AUTO} or {', '.join(RUNTIMES)}.",
        )


def check_output(path: str | None) -> None:
    """Refuse an output file that is no absolute path (BFT-1007, BFT-1016)."""
    if path is None:
        return
    check_string("--output", path)
    if not path.startswith("/"):
        raise UsageError(
            "BFT-1016", f"The output {path[:200]!r} is not absolute.", "Give its absolute path."
        )


def check_notify(notify: str, events: tuple[str, ...] = ()) -> None:
    """Refuse a notification that is neither a mail nor a command, or is of no event (BFT-1066)."""
    if unknown := [event for event in events if event not in NOTIFIED]:
        raise UsageError(
            "BFT-1066",
            f"No notification is sent of {unknown[0][:40]!r}.",
            f"Name some of {', '.join(NOTIFIED)}, or none for all.",
        )
    if fault := notification_fault(notify):
        raise UsageError(
            "BFT-1066",
            f"--notify {fault}.",
            "Write --notify mail, mail:NAME@HOST, or a command with its arguments.",
        )


def check_sizes(
    n_min: int, n_max: int, sizes: tuple[int, ...] = (), option: str = "--nodes"
) -> None:
    """Refuse impossible sizes (BFT-1002); ``option``: which says them."""
    unit = "GPU" if option == "--gpus" else "node"
    if n_min < 1:
        cause = f"The smallest size must be at least 1 {unit}, not {_shown(n_min)}."
    elif n_min > n_max:
        cause = f"The smallest size ({_shown(n_min)}) is above the largest ({_shown(n_max)})."
    elif n_max > MAX_NODES:
        cause = f"The largest size ({_shown(n_max)}) is above {MAX_NODES}."
    elif len(sizes) > MAX_SIZES:
        cause = f"The set has {len(sizes)} sizes; the limit is {MAX_SIZES}."
    elif sizes and (sizes[0] != n_min or sizes[-1] != n_max):
        cause = f"The set of sizes must begin with {n_min} (n_min) and end with {n_max} (n_max)."
    elif not _is_rising(sizes):
        cause = "The sizes of the set must rise."
    else:
        return
    next_step = f"Write {option} MIN:MAX with 1 <= MIN <= MAX, or a set: {option} 1,2,4."
    raise UsageError("BFT-1002", cause, next_step)


def check_curve(curve: Curve) -> None:
    """Refuse a malformed or implausible curve (BFT-1015)."""
    _check_points(curve)
    first = curve.samples_per_s[0] / curve.sizes[0]
    if first == 0:
        raise _no_curve("The first rate of the curve is zero; others are compared with it.")
    if first < SLOWEST:
        raise _no_curve(f"The first rate of the curve is below {SLOWEST:g} for each node.")
    for size, rate in zip(curve.sizes, curve.samples_per_s, strict=True):
        if rate > LEAP * first * size:
            raise _no_curve(
                f"At {size} nodes each is more than {LEAP:g} times as fast as at the first size."
            )


def _is_rising(sizes: Sequence[int]) -> bool:
    return all(smaller < larger for smaller, larger in itertools.pairwise(sizes))


def _check_points(curve: Curve) -> None:
    sizes, rates = curve.sizes, curve.samples_per_s
    if not sizes:
        cause = "The curve has no points."
    elif len(sizes) != len(rates):
        cause = f"The curve has {len(sizes)} sizes but {len(rates)} rates."
    elif len(sizes) > MAX_POINTS:
        cause = f"The curve has {len(sizes)} points; the limit is {MAX_POINTS}."
    elif sizes[0] < 1 or not _is_rising(sizes):
        cause = "The sizes of the curve must be whole numbers from 1, each above the last."
    elif sizes[-1] > MAX_NODES:
        cause = f"The sizes of the curve go beyond {MAX_NODES}."
    elif not all(0 <= rate <= FASTEST for rate in rates):
        cause = f"The rates of the curve must be numbers from 0 to {FASTEST:g}."
    else:
        return
    raise _no_curve(cause)


def _no_curve(cause: str) -> UsageError:
    return UsageError(
        "BFT-1015", cause, 'Write {"sizes": [1, 2, 4], "samples_per_s": [100, 190, 350]}.'
    )


def check_strings(spec: TrainerSpec) -> None:
    """Refuse strings that cannot be passed on safely (BFT-1007)."""
    total_bytes = 0
    for name, declaration in declarations(TrainerSpec).items():
        if declaration.longest_bytes is not None:
            total_bytes += check_string(
                declaration.label, getattr(spec, name), limit_bytes=declaration.longest_bytes
            )
    for index, argument in enumerate(spec.args, start=1):
        total_bytes += check_string(f"argument {index} of the script", argument)
    for key, value in spec.environment:
        total_bytes += check_string("the name of an environment variable", key)
        total_bytes += check_string(f"the environment variable {key[:40]}", value)
    if total_bytes > MAX_TOTAL_BYTES:
        raise UsageError(
            "BFT-1007",
            f"Arguments and environment have {total_bytes} bytes; the limit is {MAX_TOTAL_BYTES}.",
            "Put long values into a file that the script reads.",
        )
    for field, text in (("name", spec.name), ("script", spec.script)):
        if not text:
            raise UsageError("BFT-1007", f"The {field} is empty.", "Give it a value.")
    for key, _ in spec.environment:
        if not is_variable(key):
            raise UsageError(
                "BFT-1007",
                f"{key!r} cannot be the name of an environment variable.",
                "Write --export NAME=VALUE with letters, digits and _ in NAME.",
            )


def is_variable(name: str) -> bool:
    """Return whether an environment variable may have this name."""
    return _VARIABLE.match(name) is not None


def check_string(what: str, text: str, *, limit_bytes: int = MAX_STRING_BYTES) -> int:
    """Refuse control characters, invalid text and excess length; return its bytes."""
    control = _CONTROL.search(text)
    if control is not None:
        raise UsageError(
            "BFT-1007",
            f"{what.capitalize()} contains the character {control[0]!r}.",
            "Remove control characters (NUL, newline, escape) and use valid UTF-8.",
        )
    length = len(text.encode())
    if length > limit_bytes:
        raise UsageError(
            "BFT-1007",
            f"{what.capitalize()} has {length} bytes; the limit is {limit_bytes}.",
            "Shorten it, or put it into a file that the script reads.",
        )
    return length


def _check_counts(spec: TrainerSpec) -> None:
    for items, count, limit in (
        ("arguments", len(spec.args), MAX_ARGUMENTS),
        ("variables in its environment", len(spec.environment), MAX_VARIABLES),
    ):
        if count > limit:
            raise UsageError(
                "BFT-1032",
                f"The trainer has {count} {items}; the limit is {limit}.",
                "Put long lists into a file that the script reads.",
            )
    check_after((*spec.after, *spec.after_any))


def check_after(trainer_ids: Sequence[str]) -> None:
    """Refuse too many, or what is not the id of a trainer (BFT-1044)."""
    cause = ""
    if len(trainer_ids) > MAX_AFTER:
        cause = f"It would wait for {len(trainer_ids)} trainers; the limit is {MAX_AFTER}."
    elif wrong := [text for text in trainer_ids if not _TRAINER_ID.match(text)]:
        cause = f"{wrong[0][:40]!r} is not the id of a trainer."
    if cause:
        raise UsageError(
            "BFT-1044", cause, "Write --after ID[,ID...]; 'bftrainer status' lists them."
        )


def _check_numbers(spec: TrainerSpec) -> None:
    if spec.has_several_lengths:
        raise UsageError(
            "BFT-1016",
            "Several of epochs, samples and steps are given.",
            "Give one of --epochs, --samples and --steps.",
        )
    for name, declaration in declarations(TrainerSpec).items():
        smallest, largest = declaration.minimum, declaration.maximum
        number = getattr(spec, name)
        if smallest is None or largest is None or number is None:
            continue
        if not smallest <= number <= largest:
            option = declaration.label
            raise UsageError(
                "BFT-1016",
                f"{option} is {_shown(number)}.",
                f"It must be a number from {smallest:g} to {largest:g}.",
            )


def _check_paths(spec: TrainerSpec) -> None:
    for name, declaration in declarations(TrainerSpec).items():
        if not declaration.is_path:
            continue
        path, place = getattr(spec, name), declaration.label.removeprefix("the ")
        if path and not path.startswith("/"):
            raise UsageError(
                "BFT-1016", f"The {place} {path!r} is not absolute.", "Give its absolute path."
            )


def _shown(number: float) -> str:
    """Write a number out, unless it has hundreds of digits."""
    text = str(number)
    if len(text) > 40:
        return f"{text[:20]}... ({len(text)} digits)"
    return text


def check_lent(spec: TrainerSpec, lend: Lend) -> None:
    """Refuse a trainer that asks for GPUs where whole nodes are lent (BFT-1036)."""
    if spec.gpus_per_unit and lend is Lend.NODES:
        raise UsageError(
            "BFT-1036",
            f"The trainer asks for GPUs ({' '.join(spec.size_words)}), and this site lends whole"
            " nodes.",
            "Write --nodes MIN:MAX, and --gres gpu:COUNT if a node needs so many GPUs; or ask the"
            " administrator for 'lend: auto' in the policy.",
            exit_code=ExitCode.REFUSED_BY_POLICY,
        )


def in_site(
    spec: TrainerSpec, *, runtime: str, mounts: str, sources: Sequence[str] | None
) -> TrainerSpec:
    """Return a trainer with the site's part of its container, as the policy has it.

    Args:
        spec: the trainer; one without a container stays as it is.
        runtime: what starts its image if the user does not say.
        mounts: what it sees besides.
        sources: the directories at or below which users may mount; None: any.

    Raises:
        UsageError: BFT-1083, the site does not allow a mount.
    """
    if not spec.container:
        return spec
    user_mounts = mounts_of(spec.container_mounts)
    if sources is not None and (wrong := outside(user_mounts, sources)):
        raise UsageError(
            "BFT-1083",
            f"This site does not mount {wrong[0].source[:200]} into containers"
            " (container_sources).",
            f"Mount what is below {', '.join(sources) or 'nothing'}, or ask the administrator.",
            exit_code=ExitCode.REFUSED_BY_POLICY,
        )
    if spec.container_runtime == AUTO:
        spec = replace(spec, container_runtime=runtime)
    together = {mount.target: mount for mount in (*mounts_of(mounts), *user_mounts)}
    return replace(spec, container_mounts=text_of(together.values()))


class Allowance:
    """Recent submissions by user."""

    def __init__(self, limits: Callable[[], tuple[int, int]], clock: Callable[[], float]) -> None:
        """Limit trainers at once and per minute; the limits may change."""
        self._limits = limits
        self._clock = clock
        self._submissions_s: defaultdict[str, deque[float]] = defaultdict(deque)

    def check(self, user: str, unfinished: Iterable[TrainerRecord], more: int = 1) -> None:
        """Refuse a submission by a user who has reached a limit."""
        self.check_count(user, unfinished, more)
        _, limit_per_minute = self._limits()
        times_s, now_s = self._submissions_s[user], self._clock()
        while times_s and times_s[0] <= now_s - _MINUTE_S:
            times_s.popleft()
        if len(times_s) >= limit_per_minute:
            raise UsageError(
                "BFT-1031",
                f"{user} has submitted {len(times_s)} trainers within a minute, the policy's "
                "limit (submissions_per_minute_per_user).",
                f"Try again in {max(1.0, times_s[0] + _MINUTE_S - now_s):.0f} s.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )

    def check_count(self, user: str, unfinished: Iterable[TrainerRecord], more: int = 1) -> None:
        """Refuse trainers beyond the limit; of trials at their rungs there may be more.

        Those cost a decision nothing, but memory and a daemon's start.
        """
        limit, _ = self._limits()
        count = waiting = 0
        for record in unfinished:
            if record.spec.user != user:
                continue
            if record.rung_s is None:
                count += 1
            else:
                waiting += 1
        if count + more > limit or count + waiting + more > WAITING_TIMES * limit:
            raise UsageError(
                "BFT-1030",
                f"{user} has {count} unfinished trainers, the policy's limit "
                "(max_trainers_per_user).",
                "Wait for one to finish, or cancel one.",
                exit_code=ExitCode.REFUSED_BY_POLICY,
            )

    def took(self, user: str, count: int = 1) -> None:
        """Count an accepted submission, of a group one for each ``GROUP`` trials."""
        self._submissions_s[user].extend([self._clock()] * math.ceil(count / GROUP))
