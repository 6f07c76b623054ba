"""What a checkpoint is of, and what differs where another run goes on from it. Pure.

A run is what its arguments say: a state that was trained with other ones must not pass for its own.
So each checkpoint keeps the arguments, a digest of the script, digests of the variables that were
given with the submission (their values may be secrets) and the versions of some packages.

Arguments, another program and variables that may mean something to the script are ``refusals``.
``notices`` are only told: the script was edited, the same options stand in another order, an option
that is the length of the training has grown, packages have other versions. ``origin_check`` reads
and asks; standard library only.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from bftrainer.ground.fields import in_one_line, shortened

KEY = "origin"  # in headers of checkpoints
EXPORTED = "BFT_EXPORTED"  # in a worker's environment: names of variables given by name
MOST_NAMED = 6  # differences
MOST_CHARACTERS = 80  # of a value
_OURS = ("BFT_", "WANDB_")  # set by the daemon and by agents
_NUMBER = re.compile(r"-(?:\d|\.\d|inf|nan)", re.IGNORECASE)
_ASSIGNED = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=")  # as Hydra takes them
# Options that only say how long the script trains.
_LENGTH = re.compile(
    r"(?:(?:n|num|max|total|train|num_train|max_train)?_?epochs?"
    r"|(?:max|total|train|num_train|max_train)_(?:steps?|iters?|iterations|updates?|timesteps))"
)
# Variables that change from one login to the next, or nothing that is learnt.
_HARMLESS = re.compile(
    r"(?:.*_)?(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS?|PROXY|CACHE|HOME)(?:_.*)?"
    r"|(?:OMP|KMP|MKL|OPENBLAS|NUMEXPR|NCCL|GLOO|UCX|FI|CUDA|TORCH|PYTORCH|MALLOC|LD|LC|HF|WANDB"
    r"|MLFLOW|COMET|NEPTUNE|TQDM|TOKENIZERS|SLURM|LSB|SSH|XDG|KRB5|BFT)_.*"
    r"|PYTHON.*|KRB5.*|PATH|USER|LOGNAME|LANG|TERM|SHELL|HOSTNAME|EDITOR|PAGER|VIRTUAL_ENV|TMPDIR"
)
ARRAY_INDEX = "BFT_ARRAY_INDEX"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """The run that a checkpoint is of."""

    trainer: str = ""  # its id
    script: str = ""  # path below the working directory; elsewhere an absolute one
    digest: str = ""  # of the script; "": it could not be read
    args: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None  # digests by name; None: not known
    versions: Mapping[str, str] = field(default_factory=dict)  # of packages

    def body(self) -> dict[str, Any]:
        """Return it for a checkpoint's header."""
        return asdict(self)

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> RunOrigin | None:
        """Return what an unverified header says; None: nothing, or nothing sound."""
        body = header.get(KEY)
        if not isinstance(body, dict):
            return None
        args, variables, versions = body.get("args"), body.get("environment"), body.get("versions")
        is_sound = (
            _are_texts([body.get("trainer"), body.get("script"), body.get("digest")])
            and isinstance(args, list)
            and _are_texts(args)
            and (variables is None or _is_of_texts(variables))
            and _is_of_texts(versions)
        )
        if not is_sound:
            return None
        return cls(
            trainer=body["trainer"],
            script=body["script"],
            digest=body["digest"],
            args=tuple(body["args"]),
            environment=variables,
            versions=body["versions"],
        )


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_of_texts(value: object) -> bool:
    return isinstance(value, dict) and _are_texts(value.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a run has that the checkpoint has not, each as words."""

    refusals: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    is_other: bool = False  # something of it may change what is learnt

    def words(self) -> str:
        """Return all of it as words; "" where nothing differs."""
        return in_words([*self.refusals, *self.notices])


def in_words(parts: Sequence[str]) -> str:
    """Return the first few parts, and how many more there are."""
    words = ", ".join(parts[:MOST_NAMED])
    n_more = len(parts) - MOST_NAMED
    if n_more > 0:
        words += f" and {n_more} more"
    return words


def compare(old: RunOrigin, new: RunOrigin) -> Difference:
    """Return how a run differs from that of a checkpoint."""
    refusals, lengths, is_other_order = _of_arguments(old.args, new.args)
    variables, harmless = _of_environment(old.environment, new.environment)
    is_edited = bool(old.digest and new.digest) and old.digest != new.digest
    is_other_program = is_edited and old.script != new.script
    if is_other_program:
        refusals = [f"script {_shown(new.script)} (it has {_shown(old.script)})", *refusals]
    notices = list(lengths)
    if is_other_order:
        notices.append("the same arguments in another order")
    if is_edited and not is_other_program:
        notices.append("the script was edited")
    notices += [*harmless, *_of_versions(old.versions, new.versions)]
    refusals = [*refusals, *variables]
    return Difference(
        refusals=tuple(refusals),
        notices=tuple(notices),
        is_other=bool(refusals or lengths or is_edited),
    )


# ---- arguments -----------------------------------------------------------------------


class Occurrence(NamedTuple):
    """An option as it stands on a command line."""

    name: str
    values: list[str]


Options = dict[str, tuple[tuple[str, ...], ...]]


def options_of(args: Iterable[str]) -> Options:
    """Return the values of each option, as often as it was given; "" has what stands before them.

    ``--lr=1`` is ``--lr 1``. Without the script's parser, what follows a flag counts as its value.
    """
    last = Occurrence("", [])
    occurrences = [last]
    for text in args:
        name, has_value, value = text.partition("=")
        if text.startswith("-") and text != "-" and not _NUMBER.match(text):
            last = Occurrence(name, [value] if has_value else [])
            occurrences.append(last)
        elif last.name == "" and _ASSIGNED.match(text):
            occurrences.insert(-1, Occurrence(f"{name}=", [value]))
        else:
            last.values.append(text)
    options: Options = {}
    for name, values in occurrences:
        if name or values:
            options[name] = (*options.get(name, ()), tuple(values))
    return options


def _of_arguments(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Return what differs, lengths that have grown, and whether only the order differs."""
    before, now = options_of(old), options_of(new)
    differing = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    refusals, lengths = list[str](), list[str]()
    for name in differing:
        if _has_grown(name, before.get(name), now.get(name)):
            lengths.append(_changed(name, before, now))
        else:
            refusals.append(_changed(name, before, now))
    return refusals, lengths, not differing and list(before) != list(now)


def _has_grown(
    name: str, before: tuple[tuple[str, ...], ...] | None, now: tuple[tuple[str, ...], ...] | None
) -> bool:
    plain = name.strip("-+~=").lower().replace("-", "_").rpartition(".")[2].rpartition("/")[2]
    if not _LENGTH.fullmatch(plain) or before is None or now is None:
        return False
    return _number(before) < _number(now)  # not so where either is no number


def _number(values: tuple[tuple[str, ...], ...]) -> float:
    try:
        ((text,),) = values
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _changed(name: str, before: Options, now: Options) -> str:
    return f"{_written(name, now.get(name))} (it has {_written(name, before.get(name))})"


def _written(name: str, values: tuple[tuple[str, ...], ...] | None) -> str:
    if values is None:
        return f"no {_shown(name)}" if name else "nothing"
    if not name:
        return _shown(" ".join(values[0]))
    option = name if name.endswith("=") else f"{name} "
    occurrences = [f"{option}{' '.join(texts)}".rstrip() for texts in values]
    return _shown(" ".join(occurrences))


def _shown(text: str) -> str:
    return in_one_line(shortened(text, MOST_CHARACTERS))


# ---- the rest ------------------------------------------------------------------------


def digest_of(*parts: bytes) -> str:
    """Return a short digest of parts, each of which counts by itself."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:24]


def environment_of(pairs: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Return digests of the variables that were given by name; None: it is not known which."""
    variables = dict(pairs)
    names = variables.get(EXPORTED)
    if names is None:
        if all(name.startswith(_OURS) for name in variables):
            return {}
        return None
    return {
        name: digest_of(name.encode(), variables[name].encode(errors="surrogateescape"))
        for name in sorted(names.split())
        if name in variables
    }


def _of_environment(
    old: Mapping[str, str] | None, new: Mapping[str, str] | None
) -> tuple[list[str], list[str]]:
    """Return variables that differ: those that may mean something to the script, and others."""
    if old is None or new is None:
        return [], []
    refusals: list[str] = []
    notices: list[str] = []
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        change = "changed"
        if name not in new:
            change = "not set"
        elif name not in old:
            change = "not set before"
        text = f"variable {_shown(name)} {change}"
        if name != ARRAY_INDEX and _HARMLESS.fullmatch(name):
            notices.append(text)
        else:
            refusals.append(text)
    return refusals, notices


def _of_versions(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    packages = sorted(old.keys() & new.keys())
    return [
        f"{_shown(name)} {_shown(new[name])} (it has {_shown(old[name])})"
        for name in packages
        if old[name] != new[name]
    ]
