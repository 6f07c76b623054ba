"""``bftrainer account`` against the real server and a real journal, and who sees what."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.http_protocol import PEER_KEY, Credentials
from bftrainer.api.routes import Routes
from bftrainer.cli.main import main
from bftrainer.daemon.accounts import ADDED, Added, Sums
from bftrainer.journal.journal import Journal
from bftrainer.journal.tables import ACCOUNT_SUMS
from bftrainer.model.errors import ExitCode
from bftrainer.model.reports import NodeTime, Whose, day_of
from bftrainer.site.policy.keys import Visibility
from tests.integration.cli_fixtures import Output, home, service
from tests.support.memory_service import MemoryService, error_code
from tests.support.snapshots import T0

__all__ = ["home", "service"]

DAY = "2023-11-14"  # of T0, in UTC
STRANGER = 40_001
SUMS: Sums = {
    Whose(day=DAY, user="ada", account="physics", trainer_id="t1"): NodeTime(
        trained_s=6480.0, redone_s=360.0, warm_up_s=180.0, idle_s=180.0, returned_s=3600.0,
        pilots=3, given_back=1, preempted=1,
    ),
    Whose(day="2023-11-15", user="=bob", account="", trainer_id="t2"): NodeTime(trained_s=3600.0),
    Whose(day=DAY, user=str(STRANGER), trainer_id="t3"): NodeTime(trained_s=36.0),
}  # fmt: skip


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line]


def test_the_table_of_the_daemon(service: MemoryService, capsys: Output) -> None:
    assert main(["account"]) == 0
    assert "nobody used anything" in capsys.readouterr().out
    service.account_sums = SUMS
    assert main(["account", "--by", "user,account"]) == 0
    lines = table(capsys.readouterr().out)
    assert ["ada", "physics", "2.00", "0.20", "0.10", "0.05", "0.05", "1.00", "3", "1.00"] in lines
    assert ["=bob", "-", "1.00", "0.00", "0.00", "0.00", "0.00", "0.00", "0", "0.50"] in lines
    assert ["total", "3.01", "0.20", "0.10", "0.05", "0.05", "1.00", "3", "1.50"] in lines


def test_days_bound_what_is_summed_up(service: MemoryService, capsys: Output) -> None:
    service.account_sums = SUMS
    assert main(["account", "--by", "day", "--since", "2023-11-15", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(line["day"], line["harvested_h"]) for line in told["lines"]] == [("2023-11-15", 1.0)]
    assert main(["account", "--by", "trainer", "--until", DAY, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [line["trainer"] for line in told["lines"]] == ["t1", "t3"]
    assert main(["account", "--since", "36500d", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["lines"]) == 3


def test_csv_has_every_figure_and_no_formula(service: MemoryService, capsys: Output) -> None:
    service.account_sums = SUMS
    assert main(["account", "--by", "user", "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    by_user = {row["user"]: row for row in rows}
    assert by_user.keys() == {"ada", "'=bob", str(STRANGER)}
    assert by_user["ada"] == {
        "user": "ada", "harvested_h": "2.0", "lost_h": "0.2", "redone_h": "0.1",
        "warm_up_h": "0.05", "idle_h": "0.05", "given_back_h": "1.0", "pilots": "3",
        "pilots_given_back": "1", "pilots_preempted": "1", "energy_kwh": "1.0", "gpu_h": "0.0",
    }  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        ["--by", "colour"], ["--by", "day,day"], ["--by", ""], ["--since", "yesterday"],
        ["--until", "2026-02-30"], ["--since", "9999999d"], ["--csv", "--json"],
        ["--policy", "x.yaml"], ["--journal", "missing.db"],
    ],
)  # fmt: skip
def test_bad_options_are_refused(
    service: MemoryService, options: list[str], capsys: Output
) -> None:
    del service
    assert main(["account", *options]) == ExitCode.USAGE
    assert error_code(capsys) == "BFT-1000"


def test_a_journal_is_read_without_a_daemon(home: Path, capsys: Output) -> None:
    today = day_of(time.time())
    more = {Whose(day=today, user="ada", trainer_id="t1"): NodeTime(trained_s=3600.0)}
    with Journal.open(home / "journal.db", clock=time.time) as journal:
        journal.begin_incarnation()
        for kind, since_s in ((ACCOUNT_SUMS, T0), (ADDED, None)):
            added = Added.of(SUMS if since_s else more, until_s=time.time(), since_s=since_s)
            journal.append(kind, added)
    (home / "policy.yaml").write_text("watts_per_node_type: {default: 400}\n")
    argv = ["account", "--journal", "journal.db", "--policy", "policy.yaml", "--by", "user,day"]
    assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(line["user"], line["day"], line["harvested_h"]) for line in told["lines"]] == [
        (str(STRANGER), DAY, 0.01), ("=bob", "2023-11-15", 1.0), ("ada", DAY, 2.0),
        ("ada", today, 1.0),
    ]  # fmt: skip
    assert told["total"]["energy_kwh"] == pytest.approx(0.4 * 4.01)
    assert told["complete_since_s"] == T0
    assert main([*argv, "--since", "2023-11-14"]) == 0
    assert "nothing is known of before" in capsys.readouterr().out


def asked(routes: Routes, uid: int, query: str = "") -> dict[str, Any]:
    """Return what a user is answered."""
    answer = bytearray()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answer.extend(message.get("body", b""))

    scope = {
        "type": "http", "method": "GET", "path": "/v1/account", "headers": [],
        "query_string": query.encode(), PEER_KEY: Credentials(uid=uid, pid=1),
    }  # fmt: skip
    asyncio.run(routes.app()(scope, receive, send))
    found: dict[str, Any] = json.loads(answer)
    return found


@pytest.mark.parametrize(
    ("visibility", "uid", "seen"),
    [
        (Visibility.OWN, STRANGER, [str(STRANGER)]),
        (Visibility.OWN, os.geteuid(), [str(STRANGER), "=bob", "ada"]),
        (Visibility.ALL, STRANGER, [str(STRANGER), "=bob", "ada"]),
    ],
)
def test_others_are_shown_as_the_policy_says(
    tmp_path: Path, visibility: Visibility, uid: int, seen: list[str]
) -> None:
    memory = MemoryService(tmp_path)
    memory.account_sums = SUMS
    routes = Routes(memory, lambda: visibility)
    told = asked(routes, uid)
    assert [line["user"] for line in told["lines"]] == seen
    assert told["user"] == (str(uid) if len(seen) == 1 else "")
    routes.close()


@pytest.mark.parametrize("query", ["by=colour", "by=day,day", "since=today", "until=2026-02-30"])
def test_a_malformed_request_is_refused(tmp_path: Path, query: str) -> None:
    routes = Routes(MemoryService(tmp_path))
    assert asked(routes, 0, query)["error"]["code"] == "BFT-1103"
    routes.close()
