"""The warm template: forks, exits, and whose packages a script sees."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from bftrainer import elastic
from bftrainer.batch import process
from tests.elastic.controller import ROOT, Controller, TemplateProcess
from tests.support.processes import is_running
from tests.support.waiting import wait_for


def script(directory: Path, text: str) -> Path:
    path = directory / "script.py"
    path.write_text(text)
    return path


def test_a_plain_script_runs_like_under_python(tmp_path: Path, template: TemplateProcess) -> None:
    path = script(
        tmp_path,
        "import atexit, os, sys\n"
        "atexit.register(lambda: print('at exit'))\n"
        "print(__name__, sys.argv, os.getcwd(), os.environ['MINE'], sys.path[0])\n"
        "print('to stderr', file=sys.stderr)\n"
        "assert os.getpgid(0) == os.getpid()\n"
        "sys.exit(7)\n",
    )
    with Controller(tmp_path, template) as c:
        (a,) = c.start(path, ["x", "y z"], environment=(("MINE", "yes"),))
        c.until(lambda: c.workers[a].returncode == 7, "exit status 7")
        text = c.workers[a].log.read_text()
    assert f"__main__ ['{path}', 'x', 'y z'] {tmp_path} yes {tmp_path}" in text
    assert "to stderr" in text
    assert text.endswith("at exit\n")


def test_a_script_that_raises_is_reported(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        (a,) = c.start(script(tmp_path, "def f():\n    return 1 / 0\n\n\nf()\n"))
        failed = c.failed(a)
        assert failed.code == "BFT-1410"
        assert "ZeroDivisionError" in failed.cause
        assert c.workers[a].returncode == 1
        assert 'script.py", line 2, in f' in c.workers[a].log.read_text()


def test_a_missing_working_directory_is_reported(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        (a,) = c.start(script(tmp_path, ""), cwd=str(tmp_path / "nowhere"))
        assert c.failed(a).code == "BFT-1411"


def test_users_packages_called_like_ours_win(tmp_path: Path, template: TemplateProcess) -> None:
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "__init__.py").write_text("WHOSE = 'user'\n")
    (tmp_path / "trainers" / "net.py").write_text("WIDTH = 3\n")
    (tmp_path / "milp.py").write_text("WHOSE = 'user'\n")
    path = script(
        tmp_path,
        "import milp, trainers\n"
        "import bftrainer.elastic\n"
        "from trainers.net import WIDTH\n"
        "print(trainers.WHOSE, milp.WHOSE, WIDTH)\n",
    )
    with Controller(tmp_path, template) as c:
        (a,) = c.start(path)
        assert c.failed(a).code == "BFT-1423"  # it ran, and trained nothing
        assert c.workers[a].log.read_text().startswith("user user 3\n")


def test_signals_are_reported_as_negative_statuses(
    tmp_path: Path, template: TemplateProcess
) -> None:
    path = script(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with Controller(tmp_path, template) as c:
        a, b = c.start(path, count=2)
        for i in (a, b):
            c.up(i)
        c.kill(a, signal.SIGTERM)
        c.kill(b, signal.SIGKILL)
        c.until(lambda: c.workers[a].returncode == -signal.SIGTERM, "SIGTERM ends it")
        c.until(lambda: c.workers[b].returncode == -signal.SIGKILL, "SIGKILL ends it")


def test_sockets_of_its_children_do_not_outlive_a_killed_worker(
    tmp_path: Path, template: TemplateProcess
) -> None:
    path = script(
        tmp_path,
        "import multiprocessing as mp, multiprocessing.connection, time\n"
        "def listen():\n"
        "    listener = mp.connection.Listener(family='AF_UNIX')\n"
        "    print(listener.address, flush=True)\n"
        "    time.sleep(600)\n"
        "mp.get_context('fork').Process(target=listen, daemon=True).start()\n"
        "time.sleep(600)\n",
    )
    with Controller(tmp_path, template) as c:
        (a,) = c.start(path)
        c.up(a)
        socket = Path(c.workers[a].log.read_text().strip())
        assert socket.is_socket()
        c.kill(a)
        wait_for(lambda: not socket.parent.exists(), what="its folder is removed")


def test_bad_requests_do_not_disturb_the_template(
    tmp_path: Path, template: TemplateProcess
) -> None:
    known = len(template.all("failed"))
    template.request({"fork": {"worker_id": "bad", "unknown": 1}}, [])
    template.request({"spoon": 1}, [])
    with Controller(tmp_path, template) as c:
        c.until(lambda: len(template.all("failed")) == known + 2, "two refusals")
        assert template.all("failed")[-2]["worker_id"] == "bad"
        assert {f["code"] for f in template.all("failed")[-2:]} == {"BFT-1411"}
        (a,) = c.start(script(tmp_path, "print('fine')\n"))
        assert c.failed(a).code == "BFT-1423", "still forking"


@pytest.mark.long
@pytest.mark.parametrize("how", ["socket closed", "template killed"])
def test_workers_end_with_their_template(tmp_path: Path, how: str) -> None:
    path = script(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with TemplateProcess(tmp_path) as own:
        c = Controller(tmp_path, own)
        (a,) = c.start(path)
        c.up(a)
        pid = c.workers[a].pid
        if how == "template killed":
            own.process.kill()
            own.process.wait()
        else:
            own.selector.unregister(own.channel)
            own.channel.close()
            own.process.wait(30)
        wait_for(lambda: not is_running(pid), what="worker gone")  # nobody reaps orphans here
        own.selector.unregister(c.workers[a].channel)
        c.workers[a].channel.close()


def test_an_interpreter_without_torch_says_so(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # -S: no site-packages
    bare.chmod(0o755)
    with TemplateProcess(tmp_path, python=str(bare)) as own:
        failed = own.await_packet("failed")
        assert failed["code"] == "BFT-1409"
        assert "torch" in failed["cause"]
        assert failed["next_step"]
        assert own.process.wait(30) == 1


def test_the_finder_serves_elastic_and_its_ground_and_nothing_else() -> None:
    text = (
        "import sys, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('f', {str(ROOT)!r}"
        " + '/bftrainer/elastic/finder.py')\n"
        "finder = importlib.util.module_from_spec(spec); spec.loader.exec_module(finder)\n"
        "from pathlib import Path\n"
        f"root = Path({str(ROOT)!r}) / 'bftrainer'\n"
        "assert importlib.util.find_spec('bftrainer') is None\n"
        "assert finder.ensure_importable(root)\n"
        "assert not finder.ensure_importable(root)\n"
        "import bftrainer.elastic, bftrainer.ground.protocol\n"
        "assert 'torch' not in sys.modules\n"
        "for name in ('bftrainer.cli', 'bftrainer.batch', 'milp', 'trainers'):\n"
        "    assert not importlib.util.find_spec(name), name\n"
    )
    done = process.run([sys.executable, "-I", "-S", "-c", text], timeout_s=300)
    assert done.is_ok, done.stderr


@pytest.mark.long
def test_importing_the_package_is_cheap_and_its_names_are_fixed() -> None:
    text = (
        "import sys, bftrainer.elastic as e\n"
        "assert 'torch' not in sys.modules\n"
        "print(sorted(e.__all__))\n"
        "assert e.Run.__module__ == 'bftrainer.elastic.run'\n"
        "assert e.GenerationInfo.__name__ == 'GenerationInfo'\n"
        "assert not {m for m in sys.modules if m.split('.')[0] in ('milp', 'trainers', 'zmq')}\n"
        "assert {m for m in sys.modules if m.startswith('bftrainer.')\n"
        "        and not m.startswith(('bftrainer.elastic', 'bftrainer.ground'))} == set()\n"
        "try:\n    e.nothing\nexcept AttributeError:\n    pass\n"
        "else:\n    raise SystemExit('no error')\n"
    )
    done = process.run([sys.executable, "-c", text], timeout_s=300)
    assert done.is_ok, done.stderr
    names = done.stdout.strip()
    assert names == str(sorted(elastic.__all__))
    assert "Run" in elastic.__all__
    assert all(getattr(elastic, name).__name__ == name for name in elastic.__all__)
