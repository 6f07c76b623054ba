"""What a policy is, what it is told and what it answers, and how one is found by name.

Takes a name from the administrator's policy file, returns the object that an installed
package declares for it in the entry point group ``bftrainer.policies``. How one is written:
docs/reference/policy-plugins.md.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

from bftrainer.canonical import CanonicalError, from_plain
from bftrainer.errors import UsageError
from bftrainer.plugins import load_plugin, plugin_names
from bftrainer.poll.batch_system import OptionError, OptionProblem
from bftrainer.profile.fit import MeasuredSize
from milp.problem import Allocation, Problem

ENTRY_POINT_GROUP = "bftrainer.policies"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """Of a policy that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What others have to know of a policy; the defaults suit one that reads the problem."""

    # A frozen dataclass: its fields are what ``policy_options`` may name, with types and
    # defaults; a ValueError of its ``__post_init__`` says what else is wrong.
    options: type[Any] = NoOptions
    # False: who runs keeps its nodes. Such a rule is not asked for replacements of slow
    # nodes, and the simulator gives it jobs of one size.
    rescales: bool = True
    # False: its sizes do not depend on curves. It is not asked for sizes that teach.
    follows_curves: bool = True
    # True: it chooses among all trainers; the simulator shows it more than the first p_jmax.
    admits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a trainer stands at a decision."""

    submitted_s: float  # since the epoch, as now_s
    attained_node_s: float  # node-seconds since it first trained, pauses counted
    done_samples: float  # lost ones not counted
    left_samples: float | None  # until it is complete; None: it has no goal in samples
    points: tuple[
        MeasuredSize, ...
    ] = ()  # measured: size in nodes, samples per second, their error
    deadline_s: float | None = None  # since the epoch; None: none, or nobody knows
    group: str | None = None  # that it belongs to; None: none, or nobody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a policy is told beside the problem."""

    now_s: float  # since the epoch, on the batch system's clock
    seed: int = 0  # of whatever is drawn
    options: Any = field(default_factory=NoOptions)  # of the type that the policy declares
    state: Any = None  # of its last answer that was accepted, as plain data; None: none yet
    trainers: Mapping[str, Standing] = field(default_factory=dict)  # by id, each of the problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A policy's answer."""

    allocation: Allocation
    # What it wants to be told next time, if this answer is accepted: plain data, small,
    # because every decision in the journal holds it.
    state: Any = None
    wake_at_s: float | None = None  # it wants to be asked again by then; later than now_s
    # Trainers in the order in which they enter, of which the first p_jmax may run; those it
    # does not name come behind, in order of submission.
    order: tuple[str, ...] = ()
    # Trainers that are to end, with one sentence each; none that has nodes, or gets any.
    dropped: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class AllocationPolicy(Protocol):
    """Turns a problem into an allocation; pure and deterministic.

    It is asked several times per decision, of altered problems; of all answers one is
    accepted. What it is to remember is in its answer, nowhere else. Every allocation keeps the
    rules of its problem, with trainers in the order of the answer
    (``milp.check.find_violations`` finds none), whatever it aims at.
    """

    @property
    def name(self) -> str:
        """The name users choose it by."""

    @property
    def traits(self) -> Traits:
        """What others have to know of it."""

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Decide who gets which node.

        Raises:
            milp.errors.ProblemError: the problem is malformed.
        """


def in_order(trainer_ids: Iterable[str], order: tuple[str, ...]) -> list[str]:
    """Return trainers (given in order of submission) as they enter by a policy's order."""
    named = frozenset(order)
    return [*order, *(one for one in trainer_ids if one not in named)]


def policy_names() -> list[str]:
    """Names of all installed policies, sorted."""
    return plugin_names(ENTRY_POINT_GROUP)


def load_policy(name: str) -> AllocationPolicy:
    """Load a policy by its name.

    Raises:
        UsageError: BFT-3050, no installed package declares that name; BFT-3051, what it
            declares is no policy; BFT-3052, it is one of an earlier release.
    """
    policy = load_plugin(ENTRY_POINT_GROUP, name, what="policy", code="BFT-3050")
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
    except ValueError:  # of a compiled one nothing is known
        return True
    return True


def options_of(policy: AllocationPolicy, given: Mapping[str, Any]) -> Any:
    """Return a policy's options as it declares them; what is not given has its default.

    Raises:
        OptionError: BFT-3053, one is unknown, or is not what the policy accepts.
    """
    cls = policy.traits.options
    known = [one.name for one in fields(cls)]
    listed = f"Its options: {', '.join(known)}." if known else "It has no options."
    problems = [
        OptionProblem(
            path=(name,),
            cause=f"The policy {policy.name} has no option {name!r}.",
            next_step=f"Did you mean {close[0]}?" if close else listed,
        )
        for name in given
        if name not in known
        for close in (difflib.get_close_matches(name, known, n=1),)
    ]
    if not problems:
        try:
            return from_plain({"type": cls.__name__, **given}, cls)
        except CanonicalError as error:
            path = tuple(name for name in known if f".{name}" in error.where)[-1:]
            option = f"Option {path[0]!r}" if path else "An option"
            problems = [
                OptionProblem(
                    path=path,
                    cause=f"{option} of the policy {policy.name} is wrong: {error.bare_cause}.",
                    next_step=listed,
                )
            ]
    raise OptionError("BFT-3053", problems)
