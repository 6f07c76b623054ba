"""``submit --notify``: a command that the daemon runs once when a trainer has ended."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.api.admission import MAIL, command_of
from bftrainer.cli import notification as notification_module
from bftrainer.cli.main import main
from bftrainer.daemon.notifier import Notifier, check_user, own_user
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from tests.conformance.runtime import POLICY
from tests.integration.cli_fixtures import Output, home, output, service
from tests.integration.daemon_scripts import trainer_spec
from tests.support.memory_service import MemoryService
from tests.support.processes import is_running
from tests.support.site import Site
from tests.support.waiting import wait_for

__all__ = ["home", "output", "service"]


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)


def record(notify: str, state: TrainerState = TrainerState.FINISHED) -> TrainerRecord:
    spec = TrainerSpec(name="mnist", user=own_user(), script="/s", notify=notify)
    return TrainerRecord(trainer_id="t1", spec=spec, state=state, submitted_s=1.0, reason="Why.")


def test_the_daemon_tells_of_each_end_once(tmp_path: Path) -> None:
    told = tmp_path / "told"
    line = '"$1 $BFT_TRAINER_ID $BFT_TRAINER_NAME $BFT_TRAINER_STATE $BFT_TRAINER_REASON"'
    command = f"{script(tmp_path / 'tell', f'echo {line} >> {told}')} 'a b'"

    def program(name: str, text: str) -> TrainerSpec:
        spec = trainer_spec(tmp_path / name, "", runtime="command", epochs=None, n_max=1)
        run = script(tmp_path / name / "run", text)
        return replace(spec, name=name, script=run, interpreter="", notify=command)

    with Site.open(tmp_path / "site", n_nodes=1, policy=POLICY, options=()) as site:
        site.client.submit(program("good", "echo 'BFT ready'\n"))
        wait_for(told.exists, what="the command has run")
        bad = site.client.submit(program("bad", "sleep 600\n")).record.trainer_id
        site.client.cancel(bad, now=True)
        wait_for(lambda: told.read_text().count("\n") == 2, what="two ends are told")
        site.sidecar.stop()
        site.sidecar.start()
        site.client.status()
    first, second = told.read_text().splitlines()
    assert first.startswith("a b t1 good finished ")
    assert second.startswith("a b t2 bad cancelled ")


def test_a_command_that_hangs_or_cannot_be_run_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pid = tmp_path / "pid"
    hanging = script(tmp_path / "hang", f"echo $$ > {pid}\nsleep 600\n")
    patient = Notifier(lambda: True, limit_s=600.0)
    patient.ended(record(hanging))
    wait_for(lambda: pid.exists() and pid.read_text().strip(), what="it runs, nobody waits for it")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    pid.unlink()
    notifier = Notifier(lambda: True, limit_s=3.0)
    notifier.ended(record(hanging))
    notifier.ended(record("/no/such/program"))
    wait_for(lambda: "no end within 3 s" in caplog.text, what="it is killed")
    wait_for(lambda: "/no/such/program: 127" in caplog.text, what="the other is missed")
    assert not is_running(int(pid.read_text()))


def test_nothing_is_told_before_the_end_is_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = tmp_path / "told"
    command = script(tmp_path / "tell", f"touch {told}\n")
    Notifier(lambda: False).ended(record(command))
    wait_for(lambda: "the end is not on disk" in caplog.text)
    assert not told.exists()


def test_no_command_is_run_for_another_user(tmp_path: Path) -> None:
    told = tmp_path / "told"
    ours = record(script(tmp_path / "tell", f"touch {told}\n"))
    theirs = replace(ours, spec=replace(ours.spec, user="somebody-else"))
    with pytest.raises(UsageError, match="BFT-1065"):
        check_user(theirs.spec)
    notifier = Notifier(lambda: True)
    notifier.ended(theirs)
    notifier.ended(ours)
    wait_for(told.exists)
    check_user(ours.spec)


def test_mail_goes_through_the_program_of_the_host(tmp_path: Path) -> None:
    argv, text = command_of(record(f"{MAIL}ada@example.org"), "/usr/sbin/sendmail")
    assert argv == ("/usr/sbin/sendmail", "-i", "ada@example.org")
    assert text.startswith("To: ada@example.org\nSubject: bftrainer: t1 (mnist) finished\n\nWhy.")
    argv, text = command_of(record(f"{MAIL}ada"), str(tmp_path / "mail"))
    assert argv[1:] == ("-s", "bftrainer: t1 (mnist) finished", "ada")


def test_what_is_asked_for_is_checked_at_submission(
    service: MemoryService, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["submit", "--runtime", "command", "--notify"]
    for notify, code in (
        ("no-such-command", "BFT-1066"),
        ("echo 'unbalanced", "BFT-1066"),
        ("mail:-oQ/tmp", "BFT-1066"),
        ("mail:a b", "BFT-1066"),
    ):
        monkeypatch.setattr(notification_module, "mailer", lambda: "/usr/sbin/sendmail")
        assert main([*argv, notify, "--", "sleep", "1"]) == ExitCode.USAGE
        assert code in output.readouterr().err
    monkeypatch.setattr(notification_module, "mailer", lambda: "")
    assert main([*argv, "mail", "--", "sleep", "1"]) == ExitCode.USAGE
    assert "BFT-1064" in output.readouterr().err
    assert service.records == {}
    assert main([*argv, "echo done", "--", "sleep", "1"]) == ExitCode.OK
    (sent,) = service.records.values()
    assert sent.spec.notify.endswith("/echo done")
    assert sent.spec.notify.startswith("/")
