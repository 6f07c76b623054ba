"""``bench_use``: what a process and its children used, and the rows that promises name."""

from __future__ import annotations

import re
import subprocess
import sys

import bench_use
import pytest
from _bench import daemon_costs
from _bench.benchmark import Measured
from _bench.daemon_costs import Cost
from _bench.promises import promises
from _bench.waiting import BenchError

from bftrainer.batch.process import run

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
# Burns as much in a child, which has ended when it says so.
BURN_BELOW = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BURN!r}], check=True)
print("burnt", flush=True)
sys.stdin.read()
"""


def test_a_command_costs_what_its_children_use() -> None:
    cost = daemon_costs.cost_of(lambda: run((sys.executable, "-c", BURN), timeout_s=60.0))
    idle = daemon_costs.cost_of(lambda: run(("true",), timeout_s=60.0))
    assert cost.processor_s >= 0.3 > idle.processor_s


def test_a_command_that_fails_has_no_cost() -> None:
    with pytest.raises(BenchError, match="no such partition"):
        daemon_costs.cost_of(
            lambda: run(("sh", "-c", "echo no such partition >&2; exit 1"), timeout_s=60.0)
        )


def test_a_process_is_charged_with_its_children_that_have_ended() -> None:
    argv = [sys.executable, "-c", BURN_BELOW]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "burnt\n"
        assert daemon_costs.processor_s(child.pid) >= 0.29  # in hundredths


def _costs(*walls_s: float) -> list[Cost]:
    return [Cost(wall_s=wall_s, processor_s=wall_s / 2) for wall_s in walls_s]


def test_the_slowest_submission_counts_beside_what_else_was_measured() -> None:
    measured = Measured()
    costs = {
        "submit": _costs(0.4, 0.6, 1.2),
        "sbatch": _costs(0.02, 0.03, 0.01),
        "import of torch": _costs(1.8, 3.0, 1.2),
    }
    bench_use.judge_submit(costs, measured)
    by_name = {target.name: target for target in measured.targets}
    assert by_name["submit"].measured == 1.2
    assert not by_name["submit"].is_met
    assert "sbatch 0.020 s" in by_name["submit"].note
    assert by_name["submit, processor time"].measured == 0.2  # the least
    assert by_name["import of torch / submit"].measured == pytest.approx(3.0)
    told = {p.name: p for p in promises() if p.result == "use"}
    assert told["submit"].worst_of(measured.targets) == by_name["submit"]
    assert told["submit"].alternative_of(measured.targets) == (
        "an import of torch takes 3 times as long"
    )


def test_the_restart_that_is_promised_is_the_one_with_the_queue() -> None:
    measured = Measured()
    bench_use.judge("restart with 0 queued", _costs(1.0, 1.5), bench_use.RESTART_S, measured)
    name = f"restart with {bench_use.QUEUED} queued"
    bench_use.judge(name, _costs(2.0, 2.5), bench_use.RESTART_S, measured)
    (promise,) = (p for p in promises() if p.name == "restart")
    worst = promise.worst_of(measured.targets)
    assert worst is not None
    assert (worst.name, worst.measured) == (name, 2.5)
    assert promise.alternative_of(measured.targets) == "1.5 s with none"
    assert not re.search("processor", worst.name)


def test_what_pip_downloaded_is_what_it_says() -> None:
    text = (
        "Processing /wheels/rich-15.0.0-py3-none-any.whl\n"
        "Collecting textual\n  Downloading textual-8.2.8-py3-none-any.whl (731 kB)\n"
        "  Downloading numpy-2.4.0-cp311-cp311-manylinux_2_27_x86_64.whl (16.5 MB)\n"
    )
    assert bench_use.downloaded_mb(text) == pytest.approx(17.231)
