"""What the privileged submit helper reads: a request of the daemon, were it somebody else's."""

from __future__ import annotations

import json

from bftrainer.site.submit.helper import FILES, NotAllowed, parse
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings

_OPTIONS = (
    *("--parsable", "--job-name=p000017.0123abcd", "--partition=bf", "--nodes=1", "--nodelist=n1"),
    *("--exclusive", "--mem=0", "--time=5", "--deadline=now+420", "--no-requeue", "--export=ALL"),
    *("--chdir=/", "--input=/dev/null", "--open-mode=append", "--qos=bf", "--propagate=NONE"),
)
_SUBMIT = {
    "do": "submit",
    "user": "ada",
    "pilot": "p000017",
    "site": "0123456789ab",
    "options": _OPTIONS,
    "files": {"agent.json": "{}", "agent.key": "key"},
    "grace_s": 60.0,
}
_CANCEL = {"do": "cancel", "user": "ada", "jobs": ["7", "8"], "how": "force"}
_FORGET = {"do": "forget", "user": "ada", "pilot": "p000017", "site": "0123456789ab"}


def _parsed(raw: bytes) -> None:
    request = parse(raw)
    assert (request.pilot == "") == bool(request.jobs)
    assert not any(word.startswith(("--uid", "--output", "--wrap")) for word in request.options)
    assert set(request.files) == (set(FILES) if request.do == "submit" else set())
    assert all("/" not in word for word in (request.user, request.pilot, request.site))


DOORS = (
    Door(
        name="submit-helper",
        call=_parsed,
        refuses_with=(NotAllowed,),
        inputs=bytestrings(*(json.dumps(one).encode() for one in (_SUBMIT, _CANCEL, _FORGET))),
        from_bytes=lambda raw: raw,
    ),
)
