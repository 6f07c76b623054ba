"""GPUs: what tools of drivers print, whose GPU it is, and what is made of it.

No GPU was at hand: the outputs are written after the tools' documentation and published reports,
which ``trainers.agent.gpu_tools`` names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bftrainer.api.page.parts import row
from bftrainer.cli.status import trainer_lines
from bftrainer.fleet.trainers.figures import gpu_use_of
from bftrainer.fleet.wire.messages import WorkerSaid
from bftrainer.ground import protocol
from bftrainer.ground.protocol import TELLS_GPUS, Gpu, GpusInUse, WorkerConfig
from bftrainer.journal.journal import Journal
from bftrainer.model.progress import ProgressCurves
from bftrainer.model.trainer import GpuLoad, TrainerProgress
from tests.support.journals import journal_at
from tests.unit.api.test_training_loss_told import view
from tests.unit.fleet.test_trainer_book import Site
from trainers.agent import gpus as gpus_module
from trainers.agent.gpu_tools import TOOLS, own, read_amd, read_nvidia, read_rocm
from trainers.agent.gpus import GpuWatch, answer_of, devices_of, is_told
from trainers.agent.team import Team

FIRST = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
SECOND = "GPU-1dd1a0a5-93c4-4a4c-a86c-d3c0e2f1b7aa"
NOT_ALLOWED = "[Insufficient Permissions]"
# Two H100 of 80 GB; one that is cut into instances; one of which the driver tells little.
NVIDIA = f"""\
0, {FIRST}, 87, 31744, 81559
1, {SECOND}, 0, 4, 81559
2, GPU-7d5f7c1e-0f3c-0b19-2c52-3ac2a5e3a0f1, [N/A], {NOT_ALLOWED}, {NOT_ALLOWED}
3, GPU-0a1b2c3d-0f3c-0b19-2c52-3ac2a5e3a0f1, [Not Supported], 17, 8192
"""
ROCM = """\
{"card0": {"Unique ID": "0x1f9de0957d137942", "GPU use (%)": "12",
           "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "1073741824"},
 "card1": {"GPU use (%)": "N/A", "VRAM Total Memory (B)": "68702699520"},
 "system": {"Driver version": "6.10.5"}}
"""
AMD = [
    {
        "gpu": 0,
        "usage": {"gfx_activity": {"value": 64, "unit": "%"}, "mm_activity": "N/A"},
        "mem_usage": {
            "total_vram": {"value": 196592, "unit": "MB"},
            "used_vram": {"value": 283, "unit": "MB"},
        },
    },
    {"gpu": 1, "usage": "N/A", "mem_usage": {"total_vram": "N/A", "used_vram": "N/A"}},
]


def figures(use: float | None, used: float | None, total: float | None) -> Gpu:
    return Gpu(use_percent=use, memory_used_mib=used, memory_total_mib=total)


def test_nvidia_s_lines_are_read_and_what_is_in_brackets_is_not_told() -> None:
    seen = read_nvidia(NVIDIA)
    assert [(gpu.index, gpu.figures) for gpu in seen] == [
        (0, figures(87.0, 31744.0, 81559.0)),
        (1, figures(0.0, 4.0, 81559.0)),
        (2, figures(None, None, None)),
        (3, figures(None, 17.0, 8192.0)),
    ]
    assert seen[0].names == (FIRST,)


def test_cards_of_rocm_are_read_in_bytes_and_the_system_is_none() -> None:
    """64 GiB less 16 MiB: 65,520 MiB."""
    seen = read_rocm(ROCM)
    assert [(gpu.index, gpu.figures) for gpu in seen] == [
        (0, figures(12.0, 1024.0, 65520.0)),
        (1, figures(None, None, 65520.0)),
    ]
    assert seen[0].names == ("GPU-1f9de0957d137942",)


@pytest.mark.parametrize("told", [AMD, {"gpu_data": AMD}], ids=["ROCm 6", "ROCm 7"])
def test_a_list_of_amd_smi_is_read(told: object) -> None:
    seen = read_amd(json.dumps(told))
    assert [(gpu.index, gpu.figures) for gpu in seen] == [
        (0, figures(64.0, 283.0, 196592.0)),
        (1, figures(None, None, None)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "0, GPU-1, 1, 2",
        "[]]",
        '"card0"',
        "[" * 10_000,
    ],
)
def test_whatever_else_a_tool_prints_is_no_gpu(text: str) -> None:
    for tool in TOOLS:
        with pytest.raises((ValueError, RecursionError)):
            tool.read(text)


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e400", "", "87%"])
def test_what_is_no_amount_is_not_told(value: str) -> None:
    [gpu] = read_nvidia(f"0, {FIRST}, {value}, 1, 2")
    assert gpu.figures == figures(None, 1.0, 2.0)


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (None, [0, 1, 2, 3]),  # no list: all of them
        ((), []),
        (("1",), [1]),
        (("0", "3"), [0, 3]),
        ((FIRST,), [0]),
        (("GPU-1dd1",), [1]),  # a beginning is enough
        (("GPU-8932F937",), [0]),
        (("MIG-1b5b1f1c-8932-5a3a-9d6c-5bb5e8b9a3f1",), []),  # of an instance nothing is told
        (("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0",), []),
        (("GPU-",), []),
        (("9",), []),
    ],
)
def test_only_the_listed_gpus_are_ours(devices: Sequence[str] | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in own(read_nvidia(NVIDIA), devices)] == indices


def config(*environment: tuple[str, str]) -> WorkerConfig:
    return WorkerConfig(
        trainer_id="t1", worker_id="w", node="n", script="/s", environment=environment
    )


def test_workers_devices_are_those_of_their_variable_or_of_the_agent_s() -> None:
    cuda = "CUDA_VISIBLE_DEVICES"
    environ = {cuda: "0,1,2,3", "PATH": "/bin"}
    assert devices_of([config()], environ, 4) == {cuda: ("0", "1", "2", "3")}
    two = [config((cuda, "1")), config((cuda, "3"))]
    assert devices_of(two, environ, 4) == {cuda: ("1", "3")}
    assert devices_of([config()], {cuda: "NoDevFiles"}, 0) == {cuda: ()}
    assert devices_of([config()], {"PATH": "/bin"}, 4) == {}, "all are"
    none = devices_of([config()], {"PATH": "/bin"}, 0)
    assert none == {cuda: (), "ROCR_VISIBLE_DEVICES": ()}, "they may be another job's"
    assert is_told(config((TELLS_GPUS, "agent")))
    assert not is_told(config()), "its daemon is an older one"


@pytest.mark.parametrize(
    ("gpus", "use", "text"),
    [
        ([], None, ""),
        ([figures(None, None, None)], None, ""),
        (
            [figures(87.0, 31744.0, 81559.0)],
            GpuLoad(gpus=1, use_percent=87.0, memory_used_mib=31744.0, memory_total_mib=81559.0),
            "GPU use 87%, memory 31 of 80 GiB",
        ),
        (
            [figures(80.0, 1024.0, 8192.0), figures(40.0, 2048.0, 16384.0)],
            GpuLoad(gpus=2, use_percent=60.0, memory_used_mib=3072.0, memory_total_mib=24576.0),
            "GPU use 60%, memory 3 of 24 GiB on 2 GPUs",
        ),
        (
            [figures(50.0, None, 8192.0), figures(None, None, None)],
            GpuLoad(gpus=1, use_percent=50.0),
            "GPU use 50%",
        ),
        (
            [figures(None, 4096.0, 8192.0)],
            GpuLoad(gpus=1, memory_used_mib=4096.0, memory_total_mib=8192.0),
            "memory 4 of 8 GiB",
        ),
    ],
)
def test_figures_of_several_are_put_together(
    gpus: list[Gpu], use: GpuLoad | None, text: str
) -> None:
    assert gpu_use_of(gpus) == use
    assert str(use or "") == text


# ---- the agent ---------------------------------------------------------------------------


def team(worker_id: str, *devices: str, tells: bool = True) -> Team:
    made = Team(worker_id, "t1")
    made.tells_gpus, made.devices = tells, {"CUDA_VISIBLE_DEVICES": devices}
    return made


def fake_tool(directory: Path, text: str, status: int = 0) -> Path:
    """Put an nvidia-smi on the path that counts its calls and prints this."""
    (directory / "said").write_text(text)
    program = directory / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {directory}/calls\ncat {directory}/said\nexit {status}\n'
    )
    program.chmod(0o755)
    return directory / "calls"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is waited for, and no other tool is there."""
    monkeypatch.setattr(gpus_module, "ASK_EVERY_S", 0.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def watched(teams: list[Team], until: int) -> list[tuple[str, GpusInUse]]:
    """Watch until so many reports have come, or the watch ends by itself."""
    told: list[tuple[str, GpusInUse]] = []

    async def live() -> None:
        is_enough = asyncio.Event()

        def report(said: WorkerSaid) -> None:
            message = protocol.from_body(said.body)
            assert isinstance(message, GpusInUse)
            told.append((said.worker_id, message))
            if len(told) >= until:
                is_enough.set()

        watch = GpuWatch(lambda: teams, report)
        watch.start()
        assert watch._task is not None
        enough = asyncio.ensure_future(is_enough.wait())
        await asyncio.wait({watch._task, enough}, return_when=asyncio.FIRST_COMPLETED)
        enough.cancel()
        watch._task.cancel()

    asyncio.run(live())
    return told


@pytest.mark.usefixtures("at_once")
def test_each_team_is_told_its_own_gpus_again_and_again(tmp_path: Path) -> None:
    calls = fake_tool(tmp_path, NVIDIA)
    teams = [team("w1", "0"), team("w2", FIRST, "1"), team("w3"), team("w4", "0", tells=False)]
    told = watched(teams, until=4)
    one = figures(87.0, 31744.0, 81559.0)
    assert told[:4] == 2 * [
        ("w1", GpusInUse(gpus=(one,))),
        ("w2", GpusInUse(gpus=(one, figures(0.0, 4.0, 81559.0)))),
    ]
    asked = "--query-gpu=index,uuid,utilization.gpu,memory.used,memory.total"
    assert set(calls.read_text().splitlines()) == {f"{asked} --format=csv,noheader,nounits"}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("text", "status"), [("No devices were found\n", 6), ("", 0), ("?", 0)])
def test_without_a_gpu_it_is_asked_once(
    tmp_path: Path, text: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls = fake_tool(tmp_path, text, status)
    assert watched([team("w1", "0")], until=1) == []
    assert len(calls.read_text().splitlines()) == 1
    assert caplog.records == []


@pytest.mark.usefixtures("at_once")
def test_without_a_tool_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert watched([team("w1", "0")], until=1) == []
    assert caplog.records == []


@pytest.mark.usefixtures("at_once")
def test_what_is_not_told_any_more_is_taken_back(tmp_path: Path) -> None:
    """The driver answers once, and then is lost; it is asked three times more."""
    calls = fake_tool(tmp_path, NVIDIA)
    program = tmp_path / "nvidia-smi"
    begin = f"#!/bin/sh\nif [ -e {calls} ]; then echo lost >> {calls}; exit 9; fi\n"
    program.write_text(program.read_text().replace("#!/bin/sh\n", begin))
    told = watched([team("w1", "0")], until=9)
    assert told == [
        ("w1", GpusInUse(gpus=(figures(87.0, 31744.0, 81559.0),))),
        ("w1", GpusInUse(gpus=())),
    ]
    assert calls.read_text().splitlines()[1:] == ["lost"] * 3


@pytest.mark.usefixtures("at_once")
def test_a_tool_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, NVIDIA)
    monkeypatch.setattr(gpus_module, "ANSWER_S", 0.2)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    assert answer_of(TOOLS[0]) == ()


# ---- the daemon --------------------------------------------------------------------------


journal = journal_at(100.0)


def test_the_daemon_has_them_by_trainer_and_node_while_it_trains(
    tmp_path: Path, journal: Journal
) -> None:
    site = Site(tmp_path, journal)
    site.target("n1", "n2")
    site.enter()
    assert site.commit is not None
    first, second = (member.worker_id for member in site.commit.members)

    def progress() -> TrainerProgress:
        return site.book.records[site.trainer_id].progress

    site.say(first, GpusInUse(gpus=(figures(80.0, 1024.0, 8192.0),)))
    site.say(second, GpusInUse(gpus=(figures(50.0, 2048.0, 8192.0), figures(20.0, None, None))))
    assert progress().gpu_use == GpuLoad(
        gpus=3, use_percent=50.0, memory_used_mib=3072.0, memory_total_mib=16384.0
    )
    on_second = site.book.figures.gpu_use_on(site.trainer_id, second)
    assert on_second is not None
    assert (on_second.use_percent, on_second.memory_used_mib) == (35.0, 2048.0)
    site.say(second, GpusInUse(gpus=()))
    assert progress().gpu_use == gpu_use_of([figures(80.0, 1024.0, 8192.0)])
    assert site.book.figures.gpu_use_on(site.trainer_id, second) is None
    for worker_id in (first, second):
        pilot_id = site.machine.crew.workers[worker_id].pilot_id
        site.book.on_exit(pilot_id, worker_id, -9, "")
    site.target()
    assert progress().gpu_use is None, "it is parked"


def test_people_see_them_and_a_curve_of_their_use() -> None:
    use = GpuLoad(gpus=1, use_percent=87.4, memory_used_mib=31744.0, memory_total_mib=81559.0)
    site_view = view(gpu_use=use)
    assert dict(trainer_lines(site_view))["GPUs"] == "GPU use 87%, memory 31 of 80 GiB"
    assert row(site_view)["gpu_use"] == "GPU use 87%, memory 31 of 80 GiB"
    assert "GPUs" not in dict(trainer_lines(view()))
    fold = ProgressCurves()
    for at_s, now in ((10.0, None), (20.0, GpuLoad(gpus=1, use_percent=40.0))):
        fold.saw(at_s, [view(gpu_use=now, reported_s=at_s).record])
    [curve] = fold.since()
    assert curve.gpu_uses == (None, 40.0)
    assert curve.losses == ()


def test_many_gpus_are_cut_and_a_message_has_no_more() -> None:
    lines = "\n".join(f"{number}, GPU-{number}, 1, 1, 1" for number in range(100))
    seen = read_nvidia(lines)
    assert len(seen) == protocol.MAX_GPUS
    told = GpusInUse(gpus=tuple(gpu.figures for gpu in seen))
    assert protocol.decode(protocol.encode(told)) == told
