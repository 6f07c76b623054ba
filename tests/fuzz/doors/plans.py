"""A plan that ``study run --plan`` is given: a file that anybody may have edited."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bftrainer.api.documents import document
from bftrainer.model.errors import UsageError
from bftrainer.study.plan.document import NAME, Carried, PlanRequest, plan_study
from bftrainer.study.plan.problem import Cloud, ScalingProfile, rung_stages
from bftrainer.study.rungs import Sha
from bftrainer.study.verbs.plan import read_plan
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents

_RULE = Sha(trials=4, least=1, most=4, eta=2)
_PLAN = plan_study(
    PlanRequest(
        study="s",
        unit="epochs",
        rule=_RULE.describe(),
        stages=rung_stages(_RULE),
        deadline_s=60.0,
        most=4,
        scaling=ScalingProfile(gpus=(1, 2), unit_s=(4.0, 3.0)),
        cloud=Cloud(),
        samples=1,
    )
)
_DOCUMENT = document(NAME, _PLAN)


def _carried(raw: bytes) -> None:
    """Read it and take its first verdicts."""
    with tempfile.TemporaryDirectory(prefix="bft-fuzz-") as name:
        path = Path(name) / "plan.json"
        path.write_bytes(raw)
        plan = read_plan(path)
    Carried(rule=_RULE, plan=plan).verdicts((), 4)


DOORS = (
    Door(
        name="study-plan",
        call=_carried,
        refuses_with=(UsageError,),
        inputs=bytestrings(as_json(_DOCUMENT)) | documents(_DOCUMENT).map(as_json),
        from_bytes=bytes,
    ),
)
