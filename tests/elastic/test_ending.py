"""How a worker's process ends: in bounded time, whatever the script and its modules keep."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bftrainer.ground.protocol import Failed
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

LINGERING = SCRIPTS / "lingering.py"


def trained(c: Controller, *args: str) -> str:
    """Train alone to the end of the script; return the worker."""
    [worker] = c.start(LINGERING, args)
    c.form([worker], new=[worker])
    c.until((c.directory / "over").exists, "the script's last line")
    return worker


def ended(c: Controller, worker: str) -> int | None:
    c.until(lambda: c.workers[worker].returncode is not None, "the process ended", timeout_s=40.0)
    return c.workers[worker].returncode


@pytest.mark.parametrize(
    "what",
    [
        *("thread_pool", "process_pool", "multiprocessing_pool"),
        pytest.param("compiled", marks=pytest.mark.long),
    ],
)
def test_what_the_interpreter_would_end_ends_with_the_worker(
    tmp_path: Path, template: TemplateProcess, what: str
) -> None:
    if what == "compiled" and not (shutil.which("g++") or shutil.which("c++")):
        pytest.skip("torch.compile needs a C++ compiler")
    with Controller(tmp_path, template) as c:
        worker = trained(c, what)
        assert ended(c, worker) == 0
        assert "still" not in c.workers[worker].log.read_text()


@pytest.mark.parametrize(
    ("what", "named"), [("thread", "never-ending"), ("exit_handler", "sleep_for_ever")]
)
def test_what_never_ends_is_named_and_left_with_the_status_of_the_script(
    tmp_path: Path, template: TemplateProcess, what: str, named: str
) -> None:
    with Controller(tmp_path, template) as c:
        worker = trained(c, what, "3")
        assert ended(c, worker) == 3
        log = c.workers[worker].log.read_text()
        assert "still" in log
        assert named in log


def test_children_that_were_left_behind_end_with_the_worker(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        worker = trained(c, "child")
        assert ended(c, worker) == 0
        child = int((tmp_path / "child").read_text())
        c.until(lambda: not _is_alive(child), "the child ended")


def test_what_the_script_wrote_is_in_its_files(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        ended(c, trained(c, "file"))
    assert (tmp_path / "written").read_text() == "not flushed"


def said_at_the_end(directory: Path, template: TemplateProcess, text: str) -> Failed:
    """Run a script of one's own; return what its worker says of its end."""
    script = directory / "script.py"
    script.write_text(text)
    with Controller(directory, template) as c:
        [worker] = c.start(script)
        return c.failed(worker)


@pytest.mark.parametrize(
    "text",
    ["print('hello')\n", "import sys\nsys.exit()\n", "from bftrainer import elastic\n"],
    ids=["ends", "exits", "imports"],
)
def test_a_script_that_trains_nothing_is_told_what_it_lacks(
    tmp_path: Path, template: TemplateProcess, text: str
) -> None:
    failed = said_at_the_end(tmp_path, template, text)
    assert failed.code == "BFT-1423"
    assert "without training" in failed.cause
    assert "docs/howto/train-pytorch.md" in failed.next_step


def test_a_script_that_ends_itself_with_a_status_says_which(
    tmp_path: Path, template: TemplateProcess
) -> None:
    text = "import argparse\nargparse.ArgumentParser().parse_args(['--unknown'])\n"
    failed = said_at_the_end(tmp_path, template, text)
    assert (failed.code, failed.cause) == ("BFT-1410", "The script ended itself with status 2.")


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed\ntorch.distributed.init_process_group('gloo')\n",
        "import torch.distributed as d\nd.init_process_group('gloo', rank=0, world_size=1)\n",
        "import os\nint(os.environ['RANK'])\n",
    ],
    ids=["group", "group_of_one", "environment"],
)
def test_a_script_that_expects_torchrun_is_told_what_to_write_instead(
    tmp_path: Path, template: TemplateProcess, text: str
) -> None:
    failed = said_at_the_end(tmp_path, template, text)
    assert failed.code == "BFT-1424"
    assert "HashStore" in failed.next_step


def test_any_other_missing_key_is_the_scripts_own(
    tmp_path: Path, template: TemplateProcess
) -> None:
    assert said_at_the_end(tmp_path, template, "{}['x']\n").code == "BFT-1410"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("open('/dev/full', 'w', buffering=1).write('x\\n')\n", "BFT-1455", "No space left"),
        # Raised in code of bftrainer, which the script called as it should not have had to.
        (
            "from bftrainer.ground import fields\nfields.shortened(None, 3)\n",
            "BFT-1456",
            "bftrainer failed in the script's process (TypeError",
        ),
        ("import json\njson.loads('{')\n", "BFT-1410", "The script raised JSONDecodeError"),
    ],
    ids=["a full disk", "code of bftrainer", "a library that the script called"],
)
def test_what_the_script_did_not_do_is_not_told_as_its_mistake(
    text: str, code: str, said: str, tmp_path: Path, template: TemplateProcess
) -> None:
    failed = said_at_the_end(tmp_path, template, text)
    assert failed.code == code
    assert said in failed.cause


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")  # noqa: PTH110
