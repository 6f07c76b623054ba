"""``bftrainer report`` and ``bftrainer metrics`` against the real server and a real journal."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.daemon.harm import backoff, ledger
from bftrainer.daemon.harm.aftermath import Departure, Unusable
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import HandOver, HarmRecords, How, Taken, Vain, Why
from bftrainer.daemon.harm.pending import StaysPending
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import EndedBy, NodeState
from bftrainer.model.errors import ExitCode
from tests.integration.cli_fixtures import Output, home, service
from tests.support.memory_service import MemoryService, error_code, socket_of
from tests.support.snapshots import T0

__all__ = ["home", "service"]

SLOW = HandOver(
    job_id="[7]",
    n_nodes=2,
    node="n1",
    pilot_id="p000001",
    how=How.GIVEN_BACK,
    asked_s=T0,
    freed_s=T0 + 4.0,
    precision_s=0.25,
    asked_for="7",
    decision_s=0.001,
    cancel_s=0.01,
    agent_s=3.9,
    epilog_s=0.089,
)


def test_the_report_of_the_daemon(service: MemoryService, capsys: Output) -> None:
    assert main(["report", "harm"]) == 0
    assert "95% within 1 s: nothing to judge yet" in capsys.readouterr().out
    cancelled = Taken(node="n2", pilot_id="p2", ended_s=T0, settled_s=T0, by=EndedBy.CANCELLED)
    service.harm_records = [HarmRecords(hand_overs=(SLOW,), taken=(cancelled, cancelled))]
    assert main(["report", "harm"]) == 0
    text = capsys.readouterr().out
    assert "95% within 1 s: NOT KEPT (0.0% of 1)" in text
    assert "The agent took 3.90 s to leave." in text
    assert "ended       2 without a job seen on their node: 2 cancelled, by an admin" in text
    assert "4.00  0.25  [7]" in text
    assert "<= 5 s" in text
    assert "lost cycles none" in text


def test_the_report_names_jobs_that_lost_a_scheduler_cycle(
    service: MemoryService, capsys: Output
) -> None:
    """Ten are named; each preempted a pilot that left at once, 20 s and more before its start."""
    preempted = replace(SLOW, how=How.PREEMPTED, asked_for="", freed_s=T0 + 0.03)
    service.harm_records = [
        HarmRecords(
            hand_overs=tuple(
                replace(preempted, job_id=f"{n}", start_s=T0 + 20.0 + n) for n in range(12)
            )
        )
    ]
    assert main(["report", "harm"]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("lost cycles"))
    assert line.startswith(
        "lost cycles 12 jobs started a scheduler cycle later as they had to preempt, 306.00 s in "
        "all: 11 by 31.00 s, 10 by 30.00 s, "
    )
    assert line.endswith(", 2 by 22.00 s and 2 more")


def test_one_of_each_is_told_as_one(service: MemoryService, capsys: Output) -> None:
    preempted = replace(SLOW, how=How.PREEMPTED, asked_for="", start_s=T0 + 20.0)
    left = Departure(node="n1", pilot_id="p1", asked_s=T0, gone_s=T0 + 1.5, precision_s=0.3)
    in_vain = Vain(
        job_id="9", node="n2", pilot_id="p9", asked_s=T0, settled_s=T0 + 9, why=Why.DID_NOT_START
    )
    service.harm_records = [HarmRecords(hand_overs=(preempted,), vain=(in_vain,), left=(left,))]
    assert main(["report", "harm"]) == 0
    text = capsys.readouterr().out
    assert "preempted   1 job had to preempt (100.0% of those that got nodes" in text
    assert "lost cycles 1 job started a scheduler cycle later as it had to preempt" in text
    assert "in vain     1 node (100.0% of those given back for a job" in text
    assert "all gone    1 pilot: median 1.50" in text


def test_the_report_names_nodes_that_were_unusable_after_a_pilot(
    service: MemoryService, capsys: Output
) -> None:
    left = Departure(node="n1", pilot_id="p1", asked_s=T0, gone_s=T0 + 1.5, precision_s=0.3)
    event = Unusable(
        node="n1",
        state=NodeState.DRAINED,
        reason="Epilog\terror \x1b[31m",
        at_s=T0 + 3.0,
        after_s=3.0,
        job_id="90",
        pilot_id="p1",
    )
    service.harm_records = [HarmRecords(left=(left,) * 4, unusable=(event,), ordinary_left=20)]
    assert main(["report", "harm"]) == 0
    text = capsys.readouterr().out
    assert "all gone    4 pilots: median 1.50, p95 1.50, longest 1.50, too long by 0.30" in text
    assert "unusable    1 of 4 (25.0%) nodes soon after pilots, 0 of 20 (0.0%) after" in text
    assert "above: 25.0% (95%: -1.0% to 69.9%)" in text
    assert "n1        drained      3  p1" in text
    assert "Epilog  error" in text
    assert "\x1b" not in text


def test_the_report_tells_parts_of_nodes(service: MemoryService, capsys: Output) -> None:
    """Parts are told by node and GPU; of whole nodes the report is as it was."""
    part = replace(SLOW, node="n1/0", gpus=2, gpu_type="gpu:a100")
    in_vain = Vain(
        job_id="9",
        node="n2/1",
        pilot_id="p9",
        asked_s=T0,
        settled_s=T0 + 30.0,
        why=Why.DID_NOT_START,
        gpus=1,
        gpu_type="gpu:a100",
    )
    waits = StaysPending(
        node="n2/0",
        pilot_id="p8",
        gpus=1,
        gpu_type="gpu:a100",
        requested_s=T0,
        at_s=T0 + 60.0,
        why="Resources",
    )
    records = HarmRecords(hand_overs=(part,), vain=(in_vain,), pending=(waits, waits))
    service.harm_records = [records]
    assert main(["report", "harm"]) == 0
    text = capsys.readouterr().out
    assert "hand-overs  1 node or part (2 GPUs of parts) to 1 job: 1 given back" in text
    assert "in vain     1 node or part (50.0% of those given back for a job" in text
    assert (
        "pending     2 pilots for parts of nodes, longer than a scheduler cycle: 2 Resour" in text
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["all", "gpu:a100", "1", "2", "1", "0", "1", "1", "2"] in rows
    assert ["n1", "gpu:a100", "1", "2", "1", "0", "1", "0", "0"] in rows
    assert ["n2", "gpu:a100", "0", "0", "0", "0", "0", "1", "2"] in rows
    assert "n1, 2 gpu:a100" in text
    service.harm_records = [HarmRecords(hand_overs=(SLOW,))]
    assert main(["report", "harm"]) == 0
    text = capsys.readouterr().out
    assert "hand-overs  1 node to 1 job: 1 given back" in text
    assert "part" not in text
    assert "pending" not in text


def test_the_status_says_that_the_daemon_backs_off(service: MemoryService, capsys: Output) -> None:
    assert main(["status"]) == 0
    assert "back-off" not in capsys.readouterr().out
    service.back_off = "bftrainer backs off (level 1 of 5)."
    assert main(["status"]) == 0
    assert "back-off    bftrainer backs off (level 1 of 5).\n" in capsys.readouterr().out


def test_the_status_names_slow_nodes(service: MemoryService, capsys: Output) -> None:
    service.slow_nodes = ("n3 was found slow: 0.40 of the others' throughput.",)
    assert main(["status"]) == 0
    assert "slow node   n3 was found slow: 0.40" in capsys.readouterr().out


def test_the_report_for_programs_and_its_span(service: MemoryService, capsys: Output) -> None:
    service.harm_records = [HarmRecords(hand_overs=(SLOW,))]
    before = time.time()
    assert main(["report", "harm", "--json", "--since", "30m"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "bftrainer/harm/1"
    # It is asked for in whole milliseconds.
    assert before - 1800.001 <= found["since_s"] <= time.time() - 1799.999
    assert found["worst"][0]["delay_s"] == 4.0


@pytest.mark.parametrize("span", ["30", "-1h", "1w", "nan", "1e3s"])
def test_a_span_that_is_none(span: str, capsys: Output) -> None:
    assert main(["report", "harm", f"--since={span}"]) == ExitCode.USAGE
    assert error_code(capsys) == "BFT-1000"


@pytest.mark.parametrize("since", ["x", "nan", "inf"])
def test_a_time_that_is_none(service: MemoryService, since: str, capsys: Output) -> None:
    from bftrainer.api.client import Client
    from bftrainer.model.errors import BftError

    with pytest.raises(BftError, match="since_s must be seconds since the epoch") as refused:
        Client(socket_of())._request("GET", f"/v1/harm?since_s={since}")
    assert refused.value.code == "BFT-1103"


def test_the_report_of_a_journal_whose_daemon_is_away(home: Path, capsys: Output) -> None:
    assert main(["report", "harm"]) == ExitCode.DAEMON_UNREACHABLE
    assert error_code(capsys) == "BFT-1101"
    path = home / "journal.db"
    with Journal.open(path, clock=time.time) as journal:
        journal.begin_incarnation()
        journal.append(ledger.KIND, HarmRecords(hand_overs=(SLOW,)))
        journal.append(backoff.KIND, BackOff(level=1, base_nodes=8))
    policy = home / "policy.yaml"
    policy.write_text("harm_slo_s: 5\n")
    policy.chmod(0o600)
    argv = ["report", "harm", "--journal", str(path), "--policy", str(policy)]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "95% within 5 s: kept (100.0% of 1)" in text
    assert "bftrainer backs off (level 1 of 5): it holds 4 nodes at most" in text


def test_metrics_are_passed_on_as_they_are(service: MemoryService, capsys: Output) -> None:
    assert main(["metrics"]) == 0
    assert capsys.readouterr().out == service.metrics()
    service.broken = True
    assert main(["metrics"]) == ExitCode.INTERNAL
    assert error_code(capsys) == "BFT-1100"
