"""A daemon reads its policy again: on SIGHUP and by the verb, all of it or nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.daemon import journal_replay
from bftrainer.daemon.reload import KIND, PolicyChanged
from bftrainer.model.views import StatusView
from bftrainer.site.policy import load_policy, policy_hash
from tests.integration.daemon.test_watchdog import NotifySocket
from tests.integration.daemon_scripts import light_spec
from tests.support.site import Site
from tests.support.waiting import wait_for

POLICY = "poll_interval_s: 0.2\nidle_confirmations: 1\nreserve_nodes_per_type: 0\nhold_idle_s: 0\n"


def in_force(site: Site, hash_: str) -> StatusView:
    def reached() -> StatusView | None:
        view = site.client.status()
        return view if view.policy_hash == hash_ else None

    return wait_for(reached, what=f"policy {hash_[:12]} is in force")


def is_reloaded(heard: list[str]) -> bool:
    return "RELOADING=1" in heard and "READY=1" in heard[heard.index("RELOADING=1") :]


@pytest.mark.long
def test_a_policy_is_read_again_in_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = NotifySocket(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.environ["NOTIFY_SOCKET"])
    with Site.open(tmp_path, n_nodes=2, policy=POLICY + "max_nodes: 1\n", options=()) as site:
        path, socket = site.sidecar.state_dir / "policy.yaml", str(site.client.socket_path)
        first = site.client.status().policy_hash
        trainer = site.client.submit(light_spec(tmp_path / "a")).record.trainer_id
        site.observed(trainer, 1)

        # A signal, and the next decision goes by it.
        path.write_text(POLICY)
        systemd.hear()  # the kernel keeps few datagrams
        os.kill(site.sidecar.pid, signal.SIGHUP)
        wait_for(lambda: is_reloaded(systemd.hear()), what="systemd hears of the reload")
        second = policy_hash(load_policy(path))
        assert in_force(site, second).policy_notes == ()
        systemd.close()
        site.observed(trainer, 2)

        # Mistakes change nothing; status and the verb say what they are.
        path.write_text(POLICY + "max_nodes: many\np_jmx: 3\n")
        assert main(["policy", "reload", "--socket", socket]) == 8
        said = capsys.readouterr().err
        assert "BFT-2100" in said
        assert f"{path}:5:12: BFT-2111" in said
        assert f"{path}:6:1: BFT-2110" in said
        view = site.client.status()
        assert view.policy_hash == second
        assert "refused" in view.policy_notes[0]
        assert "p_jmx" in view.policy_notes[0]
        assert "asked to reload the policy: BFT-2100" in site.sidecar.log.read_text()

        # What needs a restart stays as it was, and is named.
        path.write_text(POLICY + "max_nodes: 1\nheartbeat_s: 1\n")
        assert main(["policy", "reload", "--json", "--socket", socket]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["policy_hash"] == first
        restarts = {one["setting"]: bool(one["restart"]) for one in told["changes"]}
        assert restarts == {"max_nodes": False, "heartbeat_s": True}
        notes = in_force(site, first).policy_notes
        assert len(notes) == 1
        assert notes[0].startswith("heartbeat_s: as before the last reload")
        site.observed(trainer, 1)
        assert main(["status", "--socket", socket]) == 0
        assert "policy      heartbeat_s" in capsys.readouterr().out
        site.sidecar.stop()
        entries = site.sidecar.entries()
        site.sidecar.start()
        assert site.client.status().policy_hash == policy_hash(load_policy(path))
        assert site.client.status().policy_notes == ()
        site.client.cancel(trainer, now=True)

    changed = [entry.payload_as(PolicyChanged) for entry in entries if entry.kind == KIND]
    assert [(one.before, one.policy_hash) for one in changed] == [(first, second), (second, first)]
    assert [one.setting for one in changed[0].changes] == ["max_nodes"]
    again = list(journal_replay.take_again(entries))
    assert len(again) > 2
    assert all(one.is_equal for one in again)
    _what_if(tmp_path, site.sidecar.state_dir / "journal.db", capsys)


def _what_if(directory: Path, journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What another policy would have done is told from the journal."""
    for name, text in (("old", POLICY), ("new", POLICY + "max_nodes: 1\n")):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    capsys.readouterr()
    argv = ["policy", "test", str(directory / "old"), str(directory / "new"), "--json"]
    assert main([*argv, "--journal", str(journal)]) == 0
    told = json.loads(capsys.readouterr().out)
    old, new = told["old"], told["new"]
    assert told["trainers"] == 1
    assert old["offered_node_h"] == new["offered_node_h"] > 0.0
    assert [wait["trainers"] for wait in old["waits"]] == [1]
    assert told["not_known"]
