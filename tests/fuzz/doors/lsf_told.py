"""What LSF's events file and the files of users' scripts contain, with what users wrote in it."""

from __future__ import annotations

from hypothesis import strategies as st

from lsf_adapters.notifications.esub import LONGEST_FILE, submission
from lsf_adapters.notifications.records import (
    DROPPED,
    MOST_RECORD_BYTES,
    EarlierRecords,
    WholeRecords,
    announcements,
)
from lsf_adapters.notifications.script import FIRST_LINE
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings, texts
from tests.support.lsf_events import PILOTS, job_new, job_start, job_status

_SLOTS = {f"n{i}": 4 for i in range(64)}
_MOST_READ = 1 << 16
_RECORDS = (
    job_new(slots=8, resources="span[ptile=2] select[a>1 && b] rusage[mem=10]", hosts=("n1", "n2")),
    job_new(copies=[("a", "b", 1)], nios_port=7, dependency='ended("a ""b""")', options2=1),
    job_start(7, ["2*n1", "n2"]),
    job_status(7, 0x40),
    '"HOST_CTRL" "10.1" 1795338565 2 "n004" 0 "root" "why"',
)
_SUBMITTED = (
    (
        f'{FIRST_LINE}\nLSB_SUB_QUEUE="q"\nLSB_SUB_NUM_PROCESSORS=4\nLSB_SUB_HOSTS="n1 n2 "\n'
        'LSB_SUB_RES_REQ="span[ptile=2] select[\\"a\\"]"\nLSB_SUB_RLIMIT_RUN=420\n'
    ),
    f"{FIRST_LINE}\nLSB_SUB_HOLD=Y\nLSB_SUB_BEGIN_TIME=1795338565\nLSB_SUB_DEPEND_COND=x\n",
)


def _told(text: str) -> None:
    earlier = EarlierRecords(pilot_queue=PILOTS)
    for record in text.split("\n")[:20]:
        announcements([record], earlier, _SLOTS)


def _assembled(drawn: tuple[bytes, int]) -> None:
    said, length = drawn
    whole = WholeRecords()
    for at in range(0, min(len(said), _MOST_READ), length):
        for record in whole.add(said[at : at + length]):
            assert len(record) <= MOST_RECORD_BYTES
            assert record == DROPPED or record.count('"') % 2 == 0


def _submitted(text: str) -> None:
    whole = text[:LONGEST_FILE]
    submission(whole, user="ada", at_s=1_795_338_565.0, number=1, slots_of=_SLOTS)


_LINES = tuple(f"{record}\n".encode() for record in _RECORDS)

DOORS = (
    Door(name="lsf-event", call=_told, inputs=texts(*_RECORDS)),
    Door(
        name="lsf-events-file",
        call=_assembled,
        inputs=st.tuples(bytestrings(*_LINES), st.sampled_from((512, 4096, _MOST_READ))),
        from_bytes=lambda raw: (raw, _MOST_READ),
    ),
    Door(name="lsf-submission", call=_submitted, inputs=texts(*_SUBMITTED)),
)
