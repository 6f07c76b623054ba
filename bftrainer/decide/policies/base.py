"""The interface of a policy (traits, input, answer), and its loader by name.

Loads, by the name in the administrator's policy file, the object that an installed package
declares in the entry point group ``bftrainer.policies``. How to write one:
docs/reference/policy-plugins.md.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

from bftrainer.batch.batch_system import OptionError, OptionProblem
from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.model.canonical import CanonicalError, from_plain
from bftrainer.model.decision import Terms
from bftrainer.model.errors import UsageError
from bftrainer.model.plugins import load_plugin, plugin_names
from milp.problem import Allocation, Problem

ENTRY_POINT_GROUP = "bftrainer.policies"
_LISTED_BY = "bftrainer policy list"
_OF_FILES = (".yaml", ".yml")  # a name that ends so is that of a policy file


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """The options of a policy without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What ``bftrainer policy list`` says of a policy; "": nothing is said."""

    does: str = ""  # in a few words, as the title of its page
    optimises: str = ""  # the quantity; "nothing: ORDER" if it has an order only
    source: str = ""  # authors, title and year


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Facts about a policy for its callers; the defaults suit one that reads the problem."""

    about: About = About()
    # A frozen dataclass. Its fields are the keys of ``policy_options``, with types and defaults;
    # ``__post_init__`` may raise ValueError for invalid values.
    options: type[Any] = NoOptions
    # Options that name a file in a policy file, and hold its content (``plugins.content_of``) when
    # the policy gets them: decisions read no files, and a journal repeats them without any.
    file_options: tuple[str, ...] = ()
    # False: a running trainer keeps its nodes. Such a policy is not asked to replace slow nodes.
    rescales: bool = True
    # True: trainers get n_max nodes or none. The simulator gives such a policy jobs of one size.
    is_rigid: bool = False
    # False: its sizes do not depend on curves, so it is not asked to explore sizes.
    follows_curves: bool = True
    # True: it chooses among all trainers; the simulator offers it more than the first p_jmax.
    admits: bool = False
    # True: it compares times or rates of different trainers, so that those whose throughput is
    # unknown are given one comparable with the others', whatever the objective.
    reads_rates: bool = False
    # True: it keeps the caps of a problem, and lets run who must. Others are asked again where they
    # exceed one (``constraints.caps``).
    keeps_caps: bool = False
    # True: it maximises what curves promise; where nodes are lost often, it gets curves that count
    # what losses cost (``decide.losses``).
    expects_losses: bool = False
    # True: it gives a trainer with a set of sizes one of these. Answers of others are cut down.
    keeps_sizes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A trainer's progress at a decision."""

    submitted_s: float  # since the epoch, as now_s
    attained_node_s: float  # node-seconds since it first trained, including pauses
    done_samples: float  # without lost ones
    left_samples: float | None  # until completion; None: no goal in samples
    points: tuple[MeasuredSize, ...] = ()  # measured throughput by size
    has_rates: bool = True  # its curve is in samples per second; False: nothing but a guess
    deadline_s: float | None = None  # since the epoch; None: none or unknown
    group: str | None = None  # None: none or unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A policy's input apart from the problem."""

    now_s: float  # since the epoch, on the batch system's clock
    seed: int = 0  # for random choices
    options: Any = field(default_factory=NoOptions)  # of the declared type
    state: Any = None  # of its last accepted answer, as plain data; None: none yet
    trainers: Mapping[str, Standing] = field(default_factory=dict)  # by id, all of the problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A policy's answer."""

    allocation: Allocation
    # Passed to its next call if this answer is accepted: plain data, small, because the journal
    # keeps it with every decision.
    state: Any = None
    wake_at_s: float | None = None  # ask again by then; later than now_s
    # Order of admission; the first p_jmax may run. Trainers not named follow in order of
    # submission.
    order: tuple[str, ...] = ()
    # Trainers to end -> reason, one sentence; none that has nodes or gets any.
    dropped: Mapping[str, str] = field(default_factory=dict)
    # The numbers that the sizes follow from, for ``explain``: of all trainers that may run, or {}.
    # Not journalled; the decision is repeated to tell them.
    terms: Terms = field(default_factory=dict)


@runtime_checkable
class AllocationPolicy(Protocol):
    """Turns a problem into an allocation; pure and deterministic.

    It is called several times per decision, with altered problems; one of the answers is accepted.
    It keeps state in its answer only. Every allocation obeys the rules of its problem, with
    trainers in the order of the answer (``milp.check.find_violations`` finds none), whatever its
    objective.
    """

    @property
    def name(self) -> str:
        """The name by which users choose it."""

    @property
    def traits(self) -> Traits:
        """Facts about it for its callers."""

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Allocate the nodes.

        Raises:
            milp.problem.ProblemError: the problem is malformed.
        """


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that is one function."""

    name: str
    traits: Traits
    allocate: Callable[[Problem, Context], Decided]


def in_order(trainer_ids: Iterable[str], order: tuple[str, ...]) -> list[str]:
    """Return trainers (given in order of submission) in a policy's order of admission."""
    admitted = frozenset(order)
    return [*order, *(trainer_id for trainer_id in trainer_ids if trainer_id not in admitted)]


def policy_names() -> list[str]:
    """Names of all installed policies, sorted."""
    return plugin_names(ENTRY_POINT_GROUP)


def load_policy(name: str) -> AllocationPolicy:
    """Load a policy by its name.

    Raises:
        UsageError: BFT-3050, no installed package declares that name; BFT-3051, the declared
            object is not a policy; BFT-3052, it has the interface of an earlier release.
    """
    try:
        policy = load_plugin(
            ENTRY_POINT_GROUP, name, what="policy", code="BFT-3050", listed_by=_LISTED_BY
        )
    except UsageError as error:
        if not name.lower().endswith(_OF_FILES):
            raise
        raise UsageError(
            error.code,
            f"{name[:80]!r} is a file, but the name of a policy is wanted here, such as milp.",
            "To replay policy files: bftrainer policy test OLD NEW --trace FILE. "
            f"{_LISTED_BY!r} has the names.",
            exit_code=error.exit_code,
        ) from error
    allocate = getattr(policy, "allocate", None)
    if callable(allocate) and not _takes_two(allocate):
        raise UsageError(
            "BFT-3052",
            f"The policy {name} has an allocate that does not take a problem and a context.",
            "Write it as docs/reference/policy-plugins.md says: allocate(problem, context)"
            " returns a Decided.",
        )
    if not (isinstance(policy, AllocationPolicy) and isinstance(policy.traits, Traits)):
        raise UsageError(
            "BFT-3051",
            f"The policy {name} has no name, traits and allocate.",
            "Correct the package that declares it (docs/reference/policy-plugins.md), or choose"
            " another policy.",
        )
    return policy


def _takes_two(allocate: Any) -> bool:
    try:
        inspect.signature(allocate).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a compiled function has no signature
        return True
    return True


def options_of(policy: AllocationPolicy, given: Mapping[str, Any]) -> Any:
    """Return a policy's options as it declares them; options not given have their defaults.

    Raises:
        OptionError: BFT-3053, one is unknown, or the policy does not accept it.
    """
    cls = policy.traits.options
    names = [option.name for option in fields(cls)]
    listed = "It has no options."
    if names:
        listed = f"Its options: {', '.join(names)}."
    problems: list[OptionProblem] = []
    for name in given:
        if name in names:
            continue
        next_step = listed
        if close := difflib.get_close_matches(name, names, n=1):
            next_step = f"Did you mean {close[0]}?"
        cause = f"The policy {policy.name} has no option {name!r}."
        problems.append(OptionProblem(path=(name,), cause=cause, next_step=next_step))
    if not problems:
        try:
            return from_plain({"type": cls.__name__, **given}, cls)
        except CanonicalError as error:
            path = tuple(name for name in names if f".{name}" in error.where)[-1:]
            option = "An option"
            if path:
                option = f"Option {path[0]!r}"
            problems = [
                OptionProblem(
                    path=path,
                    cause=f"{option} of the policy {policy.name} is wrong: {error.bare_cause}.",
                    next_step=listed,
                )
            ]
    raise OptionError("BFT-3053", problems)
