"""A trace repeated, for studies that outlive it."""

from __future__ import annotations

import numpy as np

from bftrainer.batch.traces.fragments import Fragments, make_fragments


def repeated(trace: Fragments, times: int) -> Fragments:
    """Return the trace several times, one after the other."""
    begin_s, end_s = trace.span_s
    shifts = np.repeat(np.arange(times) * trace.duration_s, len(trace))
    note = f"The trace is repeated {times} times."
    return make_fragments(
        names=trace.names,
        node=np.tile(trace.node, times),
        start_s=np.tile(trace.start_s, times) + shifts,
        end_s=np.tile(trace.end_s, times) + shifts,
        span_s=(begin_s, begin_s + times * (end_s - begin_s)),
        notes=(*trace.notes, note),
        node_types=trace.node_types,
    )
