"""What bslots and jobstat print, and recordings of them."""

from __future__ import annotations

from pathlib import Path

from bftrainer.errors import BftError
from bftrainer.hostlist import ParseError
from lsf_adapters.bslots import windows
from lsf_adapters.csm.compound import on_compute_nodes
from lsf_adapters.csm.idle import gaps, poll_of
from lsf_adapters.csm.jobstat import JobStat, jobstat
from lsf_adapters.csm.polls import polls_of
from lsf_adapters.requests import Asked, JobRow
from tests.fuzz.door import Door
from tests.fuzz.hostile import texts

_BSLOTS = (
    "SLOTS          RUNTIME\n42             25 hours 42 minutes 51 seconds\n84  UNLIMITED\n",
    "SLOTS: 8\nRUNTIME: 1 hours 2 minutes 3 seconds\nHOSTS: 4*n1 4*n2\n",
)
_JOBSTAT = (
    "--- Running Jobs: 1 (4 of 9 nodes, 44.44%) ---\nJobId Username Project Nodes Remain\n"
    "7 ada p 4 57:06 04/09 10:06:23 x\n--- Eligible Jobs: 1 ---\n8 ada p 5 1:00:00 x\n"
)
_NEED = (
    "1*{select[LN]span[hosts=1]} + 84*{select[CN&&(hname==n1||hname==n2)]span[ptile=42]}",
    "1*{select[LN]} + 42*{select[CN&&(hname!='n1')&&(type==any)]order[!-slots]span[ptile=42]}",
)
_POLL = (
    '{"schema":"bftrainer/idle-poll/1","at_s":1.5,"idle":{"n1":null,"n2":60.0},'
    '"waiting":[["7",2,600.0]],"n_nodes":9,"is_named":true}\n'
)
_NOBODY = JobStat(nodes_used=None, nodes=None, running=(), eligible=(), blocked=())


def _windows(text: str) -> None:
    gaps(poll_of(0.0, windows(text), _NOBODY, slots_per_node=42))


def _need(text: str) -> None:
    asked = Asked(resources=text)
    on_compute_nodes(JobRow(job_id="7", user="ada", state="PEND", queue="q", name="x", asked=asked))


def _polls(text: str) -> None:
    polls_of(Path("polls"), list(enumerate(text.split("\n"), 1)))


DOORS = (
    Door(name="lsf-bslots", call=_windows, refuses_with=(ParseError,), inputs=texts(*_BSLOTS)),
    Door(name="lsf-jobstat", call=jobstat, refuses_with=(ParseError,), inputs=texts(_JOBSTAT)),
    Door(name="lsf-need", call=_need, inputs=texts(*_NEED)),
    Door(name="lsf-polls", call=_polls, refuses_with=(BftError,), inputs=texts(_POLL)),
)
