"""Rests of nodes that pilots left unusable, over random events."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.daemon.harm.aftermath import (
    MOST_S,
    QUIET_S,
    RESTS_PER_COOL_DOWN,
    Rests,
    Unusable,
    cooling,
    still_spoilt,
    with_events,
)
from bftrainer.model.cluster import NodeState
from tests.support.examples import examples
from tests.support.snapshots import T0

COOL_DOWN_S = 10.0
FIRST_S = RESTS_PER_COOL_DOWN * COOL_DOWN_S
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["n1", "n2"]),
        st.sampled_from(["p1", ""]),  # a pilot left it, or an ordinary job
        st.sampled_from([0.0, 1.0, FIRST_S, MOST_S, QUIET_S - 1.0, QUIET_S + 1.0]),
        st.booleans(),  # it stays unusable until the next event anywhere
    ),
    max_size=20,
)


@settings(max_examples=examples(100), deadline=None)
@given(events=EVENTS)
def test_each_event_doubles_the_rest_until_it_is_forgotten(
    events: list[tuple[str, str, float, bool]],
) -> None:
    """Against a plain count; one node's events say nothing of another's."""
    rests: Rests = {}
    now_s = T0
    count, last_s = {"n1": 0, "n2": 0}, {"n1": -QUIET_S, "n2": -QUIET_S}
    seen = list[Unusable]()
    for name, pilot_id, pause_s, stays in events:
        now_s += pause_s
        event = Unusable(
            node=name,
            state=NodeState.DRAINED,
            reason="",
            at_s=now_s,
            after_s=1.0,
            job_id="1",
            pilot_id=pilot_id,
        )
        seen.append(event)
        rests = with_events(rests, [event])
        if pilot_id:
            count[name] = 1 if now_s - last_s[name] > QUIET_S else count[name] + 1
            last_s[name] = now_s
        if stays:
            now_s += 5.0
            rests = still_spoilt(rests, [name], now_s)
            last_s[name] = now_s if count[name] else last_s[name]
        for node in ("n1", "n2"):
            rest_s = min(MOST_S, FIRST_S * 2.0 ** (count[node] - 1)) if count[node] else 0.0
            is_resting = now_s < last_s[node] + rest_s
            found = cooling(rests, COOL_DOWN_S, now_s).get(node)
            assert (found is not None) == is_resting
            if found is not None:
                assert found.failures == count[node]
                assert abs(found.until_s - last_s[node] - rest_s) < 1e-3
    if not any(stays for *_, stays in events):
        assert with_events({}, seen) == rests  # as a restarted daemon reads them
