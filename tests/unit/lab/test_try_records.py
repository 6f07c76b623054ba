"""Which updates a run's last state contains: followed by states, whatever generations are called.

Twenty samples, two an update: update n takes the samples 2n - 2 and 2n - 1, whoever makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bftrainer.lab.try_records import EpochUse, Line, epochs, losses

SAMPLES, EACH = 20, 2
MARKS = ("group", "from")  # in a line, of the states
WHOLE = [EpochUse(epoch=0, of=SAMPLES, used=SAMPLES)]


def made(
    name: str,
    generation: int,
    begins: tuple[str, int],
    updates: Sequence[int],
    *,
    is_finished: bool = False,
    shift: int = 0,
) -> dict[str, list[Line]]:
    """Write down what the one worker of a generation does.

    Args:
        name: of the generation, unlike its number unique.
        generation: its number.
        begins: which generation had made the last update of the state it begins with, and how
            many updates that state has.
        updates: that it makes then.
        is_finished: it ends the run.
        shift: by which its updates take other places than they should.
    """
    own: dict[str, Any] = {"generation": generation, "attempt": 1, "group": name}
    own |= {"rank": 0, "size": 1}
    lines: list[Line] = [{**own, "kind": "entered", "step": begins[1], "from": begins[0]}]
    for n in updates:
        at = EACH * (n - 1) + shift
        places = [at, at + 1]
        handed = {"epoch": 0, "number": 0, "at": at, "of": SAMPLES, "indices": places}
        lines.append({**own, "kind": "handed", "step": n - 1, **handed})
        lost = {"loss": 100.0 * generation + n, "weight": 1, "number": 1, "reduction": "mean"}
        lines.append({**own, "kind": "loss", "step": n - 1, **lost})
        lines.append({**own, "kind": "committed", "step": n})
    if is_finished:
        lines.append({**own, "kind": "finished", "step": updates[-1]})
    return {f"n1-{name}": lines}


A = made("a", 1, ("", 0), range(1, 5))


def test_agents_form_a_generation_while_a_daemon_forms_another_of_the_same_number() -> None:
    """That of the agents has the newest state; the daemon's begins with an old checkpoint."""
    agents = made("b", 2, ("a", 4), range(5, 7))
    daemons = made("c", 2, ("a", 2), range(3, 6))
    last = made("d", 3, ("b", 6), range(7, 11))
    assert epochs({**A, **agents, **daemons, **last}) == WHOLE
    assert epochs({**A, **daemons, **agents, **last}) == WHOLE
    found = losses({**A, **daemons, **agents, **last})
    wanted = [101, 102, 103, 104, 205, 206, 307, 308, 309, 310]
    assert list(found.values()) == wanted


def test_a_later_generation_comes_to_nothing_beside_one_that_goes_on() -> None:
    beside = made("b", 2, ("a", 2), [3])
    last = made("c", 3, ("a", 4), range(5, 11))
    assert epochs({**A, **beside, **last}) == WHOLE


def test_a_run_that_ended_counts_though_a_later_generation_began() -> None:
    ended = made("b", 2, ("a", 4), range(5, 11), is_finished=True)
    in_vain = made("c", 3, ("a", 4), [5])
    assert epochs({**A, **ended, **in_vain}) == WHOLE


def test_two_restarts_from_one_checkpoint_count_once() -> None:
    """The second begins where the first did, so what the first made is dropped."""
    dropped = made("b", 2, ("a", 2), range(3, 8))
    last = made("c", 3, ("a", 2), range(3, 11))
    assert epochs({**A, **dropped, **last}) == WHOLE


def test_samples_that_the_last_state_took_twice_or_not_at_all_are_seen() -> None:
    """The states are right, the places are not: two are taken twice, the last two not."""
    wrong = made("b", 2, ("a", 4), range(5, 11), shift=-EACH)
    [use] = epochs({**A, **wrong})
    assert (use.used, use.missed, use.repeated) == (SAMPLES - EACH, 0, EACH)
    assert use.twice == (6, 7)


def test_a_run_that_fell_back_further_than_its_records_say_is_seen() -> None:
    """It begins with the state after update 2 and goes on with update 5."""
    [use] = epochs({**A, **made("b", 2, ("a", 2), range(5, 11))})
    assert (use.missed, use.repeated) == (2 * EACH, 0)


def test_workers_of_an_earlier_release_do_not_say_with_what_they_began() -> None:
    """Then the newest generation before counts that had made the update."""
    dropped = made("b", 2, ("a", 2), range(3, 4))
    last = made("c", 3, ("b", 3), range(4, 11))
    everything = {**A, **dropped, **last}
    for name, lines in everything.items():
        everything[name] = [{k: v for k, v in x.items() if k not in MARKS} for x in lines]
    assert epochs(everything) == WHOLE


def test_a_run_that_began_elsewhere_counts_from_there() -> None:
    [use] = epochs(made("b", 7, ("gone", 4), range(5, 11)))
    assert (use.used, use.missed) == (SAMPLES - 4 * EACH, 4 * EACH)
