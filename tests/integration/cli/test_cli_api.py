"""The command line against the real server on a real Unix socket."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import pwd
import signal
import stat
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.api.documents import decode
from bftrainer.batch import process
from bftrainer.cli import submit as submit_module
from bftrainer.cli.logs import TAIL_LINES
from bftrainer.cli.main import main
from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import FailureRow, TrainerSpec, TrainerState
from tests.integration.cli_fixtures import Output, home, output, service
from tests.support.memory_service import MemoryService, error_code, serving, socket_of
from tests.support.waiting import wait_for

__all__ = ["home", "output", "service"]

ME = pwd.getpwuid(os.geteuid()).pw_name


def submitted(service: MemoryService, count: int = 1, *, user: str = ME) -> None:
    for _ in range(count):
        number = len(service.records) + 1
        spec = TrainerSpec(
            name=f"job{number}", user=ME, script="/x/train.py", checkpoint_dir=f"/x/c{number}"
        )
        Client(socket_of()).submit(spec)
        record = service.records[f"t{number}"]
        service.records[f"t{number}"] = decode(
            type(record), json.loads(json.dumps(_with_user(record, user)))
        )


def _with_user(record: object, user: str) -> object:
    from bftrainer.api.documents import encode

    value = encode(record)
    value["spec"]["user"] = user
    return value


# ---- submit -----------------------------------------------------------------------


def test_submit_sends_the_very_spec_of_the_dry_run(service: MemoryService, output: Output) -> None:
    Path("curve.json").write_text('{"sizes": [1, 4], "samples_per_s": [10, 35.5]}')
    Path("train.py").write_text(
        "#!/usr/bin/env python\n#BFT --nodes 1:8 --epochs 3  # more\n\n#BFT --export A=1\n"
        "import sys\n#BFT --never-read\n"
    )
    argv = ["--nodes", "2:6", "--curve", "curve.json", "--export", "B=x=y", "--weight", "2"]
    argv += ["-J", "naïve; $(touch canary)", "train.py", "--lr", "0.1", "-f"]
    assert main(["submit", "--dry-run", "--json", *argv]) == 0
    dry = json.loads(output.readouterr().out)
    assert dry["schema"] == "bftrainer/dry-run/1"
    assert any("torch 9.9" in check for check in dry["checks"])
    assert not Path("bft-naïve____touch_canary_").exists()
    assert service.records == {}

    assert main(["submit", *argv]) == 0
    assert output.readouterr().out == "Submitted trainer t1\n"
    spec = service.records["t1"].spec
    assert spec == decode(TrainerSpec, dry["spec"])
    assert (spec.n_min, spec.n_max, spec.epochs) == (2, 6, 3)
    assert spec.args == ("--lr", "0.1", "-f")
    # The last says which were named: workers compare those with a checkpoint's.
    assert spec.environment == (("A", "1"), ("B", "x=y"), ("BFT_EXPORTED", "A B"))
    assert spec.name == "naïve; $(touch canary)"
    assert spec.user == ME
    assert spec.interpreter == sys.executable
    assert Path(spec.checkpoint_dir).is_dir()
    assert stat.S_IMODE(Path(spec.checkpoint_dir).stat().st_mode) == 0o700
    assert not Path("canary").exists()
    (peer,) = service.peers
    assert (peer.uid, peer.user, peer.pid) == (os.geteuid(), ME, os.getpid())


def test_submit_prints_ids_for_scripts_and_documents_for_programs(
    service: MemoryService, output: Output
) -> None:
    assert main(["submit", "--parsable", "train.py"]) == 0
    assert output.readouterr().out == "t1\n"
    assert main(["submit", "--json", "-J", "other", "train.py"]) == 0
    document = json.loads(output.readouterr().out)
    assert document["schema"] == "bftrainer/trainer/1"
    assert document["record"]["trainer_id"] == "t2"


@pytest.mark.parametrize(
    ("argv", "code", "exit_code"),
    [
        (["absent.py"], "BFT-1001", 2),
        (["."], "BFT-1001", 2),
        (["nul\0.py"], "BFT-1001", 2),
        (["--nodes", "4:2", "train.py"], "BFT-1002", 2),
        (["--nodes", "0", "train.py"], "BFT-1002", 2),
        (["--nodes", "many", "train.py"], "BFT-1002", 2),
        (["directive.py"], "BFT-1003", 2),
        (["--interpreter", "/absent/python", "train.py"], "BFT-1006", 2),
        (["--venv", "/absent", "train.py"], "BFT-1006", 2),
        (["--venv", "/a", "--interpreter", "/b", "train.py"], "BFT-1006", 2),
        (["-J", "two\nlines", "train.py"], "BFT-1007", 2),
        (["train.py", "x" * 10_240], "BFT-1007", 2),
        (["train.py", "nul\0"], "BFT-1007", 2),
        (["--export", "1A=2", "train.py"], "BFT-1007", 2),
        (["--checkpoint-dir", "train.py/below", "train.py"], "BFT-1014", 2),
        (["--checkpoint-dir", "/proc/bft-none", "train.py"], "BFT-1014", 2),
        (["--curve", "absent.json", "train.py"], "BFT-1015", 2),
        (["--epochs", "1", "--samples", "1", "train.py"], "BFT-1016", 2),
        (["--weight", "nan", "train.py"], "BFT-1016", 2),
        (["--runtime", "punch-cards", "train.py"], "BFT-1304", 8),
        (["--chdir", "/absent", "train.py"], "BFT-1013", 2),
        (["--frobnicate", "train.py"], "BFT-1000", 2),
        (["--epochs", "few", "train.py"], "BFT-1000", 2),
        (["--export", "BFT_NOT_SET_HERE", "train.py"], "BFT-1000", 2),
        (["--dry-run", "--wait", "train.py"], "BFT-1000", 2),
        ([], "BFT-1000", 2),
    ],
)
def test_a_bad_submission_is_refused_before_anything_is_sent(
    service: MemoryService, output: Output, argv: list[str], code: str, exit_code: int
) -> None:
    Path("directive.py").write_text("#BFT --frobnicate\n")
    before = sorted(Path.cwd().iterdir())
    assert main(["submit", *argv]) == exit_code
    assert error_code(output) == code
    assert service.records == {}
    assert sorted(Path.cwd().iterdir()) == before


def test_a_failed_submission_takes_its_checkpoint_directory_back(
    home: Path, output: Output
) -> None:
    assert main(["submit", "train.py"]) == ExitCode.DAEMON_UNREACHABLE
    assert error_code(output) == "BFT-1101"
    assert not (home / "bft-train").exists()


def test_two_trainers_cannot_share_a_checkpoint_directory(
    service: MemoryService, output: Output
) -> None:
    assert main(["submit", "train.py"]) == 0
    output.readouterr()
    assert main(["submit", "train.py"]) == ExitCode.USAGE
    assert error_code(output) == "BFT-1014"
    assert Path("bft-train").is_dir()
    service.set_state("t1", TrainerState.FINISHED)
    assert main(["submit", "train.py"]) == 0


def test_an_interpreter_without_torch_is_named(home: Path, output: Output) -> None:
    (home / "site" / "torch.py").write_text("raise ImportError('no such wheel')\n")
    assert main(["submit", "train.py"]) == ExitCode.USAGE
    captured = output.readouterr()
    assert "BFT-1006" in captured.err
    assert "no such wheel" in captured.err


def test_submit_looks_for_torch_and_a_dry_run_imports_it(
    home: Path, service: MemoryService, output: Output
) -> None:
    imports = home / "imports"
    (home / "site" / "torch.py").unlink()
    package = home / "site" / "torch"
    package.mkdir()
    (package / "version.py").write_text("__version__ = '2.99.0'\n")
    (package / "__init__.py").write_text(
        f"open({str(imports)!r}, 'a').write('torch\\n')\nfrom torch.version import __version__\n"
    )
    assert main(["submit", "train.py"]) == 0
    assert not imports.exists()
    assert main(["submit", "--dry-run", "-J", "other", "train.py"]) == 0
    assert imports.read_text().split() == ["torch"]
    assert "imports torch 2.99.0" in output.readouterr().out
    assert [record.spec.name for record in service.records.values()] == ["train"]


def test_a_torch_that_does_not_tell_its_release_is_imported(home: Path, output: Output) -> None:
    package = home / "site" / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('half a wheel')\n")
    assert main(["submit", "train.py"]) == ExitCode.USAGE
    assert "half a wheel" in output.readouterr().err


def test_the_real_torch_is_imported(home: Path, output: Output) -> None:
    torch = pytest.importorskip("torch")
    assert main(["submit", "--export", "PYTHONPATH=", "--dry-run", "train.py"]) == 0
    assert f"imports torch {torch.__version__}" in output.readouterr().out


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_script_that_does_not_compile_is_refused_with_the_line(
    service: MemoryService, output: Output, *, dry_run: bool
) -> None:
    Path("typo.py").write_text("import torch\n\nfor epoch in range(3)\n    pass\n")
    options = ["--dry-run"] if dry_run else []
    assert main(["submit", *options, "typo.py"]) == ExitCode.USAGE
    said = output.readouterr().err
    assert "BFT-1035" in said
    assert "SyntaxError in line 3: expected ':'" in said
    assert service.records == {}


def test_a_script_is_compiled_but_not_run(service: MemoryService, output: Output) -> None:
    Path("loud.py").write_text("open('it-ran', 'w')\n")
    assert main(["submit", "--dry-run", "loud.py"]) == 0
    assert "loud.py compiles" in output.readouterr().out
    assert not Path("it-ran").exists()
    assert not Path("__pycache__").exists()
    assert service.records == {}


def test_a_command_may_be_in_any_language(service: MemoryService, output: Output) -> None:
    Path("run.sh").write_text("#!/bin/sh\nif true; then exit 0; fi\n")
    argv = ["submit", "--runtime", "command", "--interpreter", "/bin/sh", "--parsable", "run.sh"]
    assert main(argv) == 0, output.readouterr().err
    assert len(service.records) == 1


def test_options_behind_the_script_that_look_like_ours_are_named(
    service: MemoryService, output: Output
) -> None:
    Path("train.py").write_text("parser.add_argument('--epochs')\n")
    assert main(["submit", "train.py", "--nodes=1:4", "--epochs", "3", "--lr", "0.1"]) == 0
    said = output.readouterr().err
    assert "warning: --nodes follows train.py" in said
    assert "--epochs" not in said
    assert "--lr" not in said
    assert service.records["t1"].spec.args == ("--nodes=1:4", "--epochs", "3", "--lr", "0.1")


@pytest.mark.parametrize(
    ("state", "exit_code"),
    [
        (TrainerState.FINISHED, 0),
        (TrainerState.FAILED, 1),
        (TrainerState.CANCELLED, 128 + signal.SIGTERM),
    ],
)
def test_wait_turns_the_end_into_the_exit_code(
    service: MemoryService,
    output: Output,
    monkeypatch: pytest.MonkeyPatch,
    state: TrainerState,
    exit_code: int,
) -> None:
    monkeypatch.setattr(submit_module, "WAIT_INTERVAL_S", 0.01)

    def end_it() -> None:
        wait_for(lambda: service.asked > 3)
        service.set_state("t1", state, "as the test wants")

    ender = threading.Thread(target=end_it)
    ender.start()
    assert main(["submit", "--wait", "train.py"]) == exit_code
    ender.join()
    captured = output.readouterr()
    assert captured.out == "Submitted trainer t1\n"
    assert captured.err == f"t1 {state}: as the test wants\n"


def test_wait_survives_a_restart_of_the_daemon(
    home: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit_module, "WAIT_INTERVAL_S", 0.01)
    memory = MemoryService(home)
    with serving(memory, socket_of()):
        submitted(memory)
    ended: list[TrainerState] = []
    waiter = threading.Thread(
        target=lambda: ended.append(
            submit_module.wait_for_end(Client(socket_of()), "t1").record.state
        )
    )
    waiter.start()  # nobody listens now
    asked = memory.asked
    with serving(memory, socket_of()):
        wait_for(lambda: memory.asked > asked)
        memory.set_state("t1", TrainerState.FINISHED)
        waiter.join(timeout=30)
    assert ended == [TrainerState.FINISHED]


# ---- read verbs -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "schema"),
    [
        (["status"], "bftrainer/status/1"),
        (["status", "t1"], "bftrainer/trainer/1"),
        (["nodes"], "bftrainer/nodes/1"),
        (["explain", "t1"], "bftrainer/explain/1"),
        (["logs", "t1"], "bftrainer/logs/1"),
    ],
)
def test_every_read_verb_prints_one_document(
    service: MemoryService, output: Output, argv: list[str], schema: str
) -> None:
    submitted(service)
    assert main([*argv, "--json"]) == 0
    captured = output.readouterr()
    assert json.loads(captured.out)["schema"] == schema
    assert captured.err == ""


def test_status_shows_daemon_and_trainers(service: MemoryService, output: Output) -> None:
    submitted(service, 13)
    for number in range(1, 13):
        service.set_state(f"t{number}", TrainerState.FINISHED)
    service.set_state("t13", TrainerState.PARKED, "no node \x1b[31mis idle")
    assert main(["status"]) == 0
    text = output.readouterr().out
    assert "incarnation 3" in text
    assert "squeue did not answer." in text
    assert "2 more have ended" in text
    assert "\nt2 " not in text
    assert "\nt3 " in text
    assert "no node is idle" in text
    assert main(["status", "--all"]) == 0
    assert "\nt1 " in output.readouterr().out


def test_status_of_one_trainer_and_nodes(service: MemoryService, output: Output) -> None:
    submitted(service)
    assert main(["status", "t1"]) == 0
    assert "requested     n2" in output.readouterr().out
    assert main(["nodes"]) == 0
    text = output.readouterr().out
    assert "[red]a pilot is on it" in text
    assert "2h01m" in text


def test_tables_on_a_terminal(service: MemoryService) -> None:
    submitted(service)
    outer, inner = pty.openpty()
    try:
        child = process.spawn(
            [sys.executable, "-m", "bftrainer.cli.main", "nodes"],
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
            stdout=inner,
        )
        os.close(inner)
        seen = bytearray()
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            while chunk := os.read(outer, 65536):
                seen += chunk
        assert child.wait(timeout=30) == 0
    finally:
        os.close(outer)
    assert "[red]a pilot is on it" in seen.decode()
    assert "\x1b[1mNODE\x1b[0m" in seen.decode(), "headers are bold"


def test_status_watch_repeats_until_the_daemon_is_gone(home: Path) -> None:
    memory = MemoryService(home)
    argv = [sys.executable, "-m", "bftrainer.cli.main", "status", "--json", "--watch", "0.1"]
    with (home / "out").open("wb") as out, (home / "err").open("wb") as err:
        with serving(memory, socket_of()):
            child = process.spawn(argv, stdout=out, stderr=err)
            wait_for(lambda: (home / "out").read_text().count("\n") >= 3)
        assert child.wait(timeout=30) == ExitCode.DAEMON_UNREACHABLE
    for line in (home / "out").read_text().splitlines():
        assert json.loads(line)["schema"] == "bftrainer/status/1"
    assert (home / "err").read_text().startswith("error BFT-1101")


def test_cancel_tries_all_and_reports_the_first_failure(
    service: MemoryService, output: Output
) -> None:
    submitted(service, 1, user="somebody")
    submitted(service, 1)
    assert main(["cancel", "t1", "t9", "t2"]) == ExitCode.NOT_PERMITTED
    captured = output.readouterr()
    assert captured.out == "t2 is cancelled\n"
    assert [line[:14] for line in captured.err.splitlines() if line[0] == "e"] == [
        "error BFT-1005",
        "error BFT-1004",
    ]
    assert service.records["t2"].state is TrainerState.CANCELLED


def test_cancel_now_asks_for_no_checkpoint(service: MemoryService, output: Output) -> None:
    submitted(service, 2)
    assert main(["cancel", "t1"]) == ExitCode.OK
    assert main(["cancel", "--now", "t2"]) == ExitCode.OK
    assert output.readouterr().out == "t1 is cancelled\nt2 is cancelled\n"
    assert service.killed == ["t2"]


@pytest.mark.parametrize("trainer_id", ["t9", "../status", "", "t1/logs", "x" * 300, "-"])
def test_an_unknown_trainer_is_not_found(
    service: MemoryService, output: Output, trainer_id: str
) -> None:
    assert main(["explain", trainer_id]) == ExitCode.NOT_FOUND
    assert error_code(output) == "BFT-1004"


# ---- logs -------------------------------------------------------------------------


def test_logs_prints_files_and_selects(service: MemoryService, output: Output) -> None:
    submitted(service)
    assert main(["logs", "t1"]) == 0
    assert "no matching log files" in output.readouterr().err
    service.add_log("t1", "w1", "first\n", rank=0, generation=1)
    service.add_log("t1", "w2", "second\n", rank=1, generation=2)
    assert main(["logs", "t1", "--all"]) == 0
    assert output.readouterr().out == (
        "==> w1 on n1, rank 0 <==\nfirst\n\n==> w2 on n1, rank 1 <==\nsecond\n"
    )
    assert main(["logs", "t1", "--rank", "1"]) == 0
    assert output.readouterr().out == "second\n"
    assert main(["logs", "t1", "-g", "1"]) == 0
    assert output.readouterr().out == "first\n"
    assert main(["logs", "t1", "--list"]) == 0
    assert str(service.log_dir / "w2") in output.readouterr().out


def test_logs_shows_the_end_of_the_worker_that_matters(
    service: MemoryService, output: Output
) -> None:
    submitted(service)
    lines = [f"line {number}\n" for number in range(200)]
    first = service.add_log("t1", "w1", "".join(lines), rank=0, generation=1)
    second = service.add_log("t1", "w2", "Traceback\nRuntimeError: no data", rank=1, generation=1)
    assert main(["logs", "t1"]) == 0
    captured = output.readouterr()
    assert captured.out == "".join(lines[-TAIL_LINES:])
    assert "--all prints 1 more" in captured.err
    assert main(["logs", "t1", "-n", "2"]) == 0
    assert output.readouterr().out == "line 198\nline 199\n"
    assert main(["logs", "t1", "--rank", "1", "-n", "1"]) == 0
    assert output.readouterr().out == "RuntimeError: no data"
    # It failed, and no rank is known any more.
    service.log_files["t1"] = [replace(f, rank=None) for f in service.log_files["t1"]]
    os.utime(first, (1e9, 1e9))
    assert main(["logs", "t1", "-n", "1"]) == 0
    assert output.readouterr().out == "RuntimeError: no data"
    os.utime(second, (1e8, 1e8))
    failing = FailureRow(count=3, log_path=str(second))
    service.records["t1"] = replace(
        service.records["t1"], state=TrainerState.FAILED, failing=failing
    )
    assert main(["logs", "t1"]) == 0
    assert output.readouterr().out == "Traceback\nRuntimeError: no data"


def test_logs_that_cannot_be_read(service: MemoryService, output: Output) -> None:
    submitted(service)
    service.add_log("t1", "w1", "text").unlink()
    os.mkfifo(service.add_log("t1", "w2", "").with_suffix(".fifo"))
    service.log_files["t1"][1] = service.log_files["t1"][1].__class__(
        worker_id="w2", node="n1", path=str(service.log_dir / "w2.fifo"), generation=0, rank=None
    )
    assert main(["logs", "t1", "-a"]) == ExitCode.NOT_FOUND
    text = output.readouterr().err
    assert "BFT-1012" in text
    assert "not a regular file" in text
    service.add_log("t1", "w3", "still here")
    assert main(["logs", "t1", "--all"]) == 0
    assert "still here" in output.readouterr().out


def test_logs_follow_until_the_trainer_ends(service: MemoryService, home: Path) -> None:
    submitted(service)
    path = service.add_log("t1", "w1", "one\n")
    argv = [sys.executable, "-m", "bftrainer.cli.main", "logs", "-f", "t1"]
    out = home / "out"
    with out.open("wb") as stream:
        child = process.spawn(argv, stdout=stream)
        wait_for(lambda: "one\n" in out.read_text())
        with path.open("a") as log:
            log.write("two\n")
        wait_for(lambda: "two\n" in out.read_text())
        service.add_log("t1", "w2", "three\n")
        wait_for(lambda: "three\n" in out.read_text())
        service.set_state("t1", TrainerState.FINISHED)
        assert child.wait(timeout=30) == 0
    assert out.read_text() == "==> w1 on n1 <==\none\ntwo\n\n==> w2 on n1 <==\nthree\n"
