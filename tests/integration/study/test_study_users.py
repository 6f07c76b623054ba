"""Studies as a stranger runs them: a plain program, a daemon that comes late, another directory."""

from __future__ import annotations

import io
import json
import subprocess
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from tests.integration.study_fixtures import POLICY, StudyUser, end
from tests.support import pages
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "train-command.md").read_text()
COMMAND = {"submit": {"runtime": "command", "interpreter": "python3", "max-failures": 1}}
BROKEN = "raise SystemExit(3)\n"


site = opened_site(n_nodes=3, policy=POLICY, options=())


@pytest.fixture(scope="module")
def reader(site: Site) -> StudyUser:
    """Somebody who has done what the page on plain programs says."""
    user = StudyUser(site, site.base / "reader")
    for name, text in pages.files(PAGE).items():
        (user.home / name).write_text(text)
    slope = (user.home / "slope.py").read_text().replace("import json", "import time, json")
    (user.home / "slow.py").write_text(slope.replace("  # trains", "; time.sleep(0.2)"))
    (user.home / "broken.py").write_text(BROKEN)
    for command in pages.commands(PAGE):
        bftrainer, study, *words = command.text.split()
        assert (bftrainer, study) == ("bftrainer", "study")
        done = user.does(*words)
        assert done.is_ok, done.stderr
        assert command.is_seen_in(done.stdout), done.stdout
    return user


@pytest.mark.long
def test_the_page_s_program_is_a_trial(reader: StudyUser) -> None:
    summary = reader.summary("slope")
    best = summary["trials"][summary["best"]]
    assert best["parameters"] == {"rate": 0.9}
    assert sorted(t["budget"] for t in summary["trials"]) == [1, 1, 3]
    directory = Path(best["checkpoint_dir"])
    assert json.loads((directory / "latest/state.json").read_text())[0] == 3
    logs = "".join(path.read_text() for path in directory.glob("logs/*"))
    epochs = [line.split()[1] for line in logs.splitlines() if line.startswith("BFT ")]
    assert sorted(epochs) == ["epoch=1", "epoch=2", "epoch=3"], "it went on from its checkpoint"


@pytest.mark.long
def test_it_waits_for_a_daemon_that_is_being_started(site: Site, reader: StudyUser) -> None:
    out = reader.home / "late.out"
    site.sidecar.kill()
    loop = reader.start("late", "slope.study")
    try:
        wait_for(lambda: "Waiting up to" in out.read_text())
        site.sidecar.start()
        assert loop.wait(30) == 0, out.read_text()
    finally:
        end(loop)
    assert out.read_text().count("No daemon can be reached") == 1, "it says so once"


@pytest.mark.long
def test_a_loop_that_knew_a_daemon_says_that_it_is_away(site: Site, reader: StudyUser) -> None:
    loop, out = _begun(reader, "kept"), reader.home / "kept.out"
    try:
        site.sidecar.kill()
        wait_for(lambda: "the daemon is away, trials go on" in out.read_text())
        site.sidecar.start()
        wait_for(lambda: "the daemon is back" in out.read_text())
        reader.says("stop", "kept")
        assert loop.wait(30) == 0
    finally:
        end(loop)
    assert out.read_text().count("away") == 1


def _begun(user: StudyUser, name: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a study of one slow trial in a directory of its own; return when it has reported."""
    user.write(
        name,
        **{**COMMAND, "parameters": {"rate": [0.5]}, "sampler": "grid"},
        rule={"name": "none", "trials": 1, "most": 100_000},
    )
    loop = user.start(name, *words, f"{name}.yaml", "slow.py")
    try:
        out = user.home / f"{name}.out"
        wait_for(lambda: loop.poll() is not None or "value" in out.read_text())
        assert loop.poll() is None, out.read_text()
        wait_for(lambda: user.summary(name)["best"] == 0, what="a summary with its value")
    except BaseException:
        end(loop)
        raise
    return loop


@pytest.mark.long
def test_asked_to_stop_the_page_s_program_loses_nothing(site: Site, reader: StudyUser) -> None:
    loop = _begun(reader, "held")
    try:
        held = site.client.trainers()[-1].record.trainer_id
        reader.says("pause", "held")
        wait_for(lambda: not site.view(held).observed_nodes)
        before = reader.summary("held")["trials"][0]["units"]
        reader.says("resume", "held")
        wait_for(lambda: reader.summary("held")["trials"][0]["units"] > before)
        reader.says("stop", "held")
        assert loop.wait(30) == 0
    finally:
        end(loop)
    assert site.view(held).record.failures == 0
    lines = [line for line in site.log_text(held).splitlines() if line.startswith("BFT epoch")]
    epochs = [int(line.split()[1].removeprefix("epoch=")) for line in lines]
    assert sorted(set(epochs)) == list(range(1, max(epochs) + 1))
    assert len(epochs) <= max(epochs) + 1, "at most the last report is made again"


@pytest.mark.long
def test_verbs_find_a_study_elsewhere(site: Site, reader: StudyUser, tmp_path: Path) -> None:
    place, other = tmp_path / "place", tmp_path / "other"
    loop = _begun(reader, "far", "--dir", str(place))
    try:
        assert not (reader.home / "far.study").exists()
        study = reader.summary("far")["study"]
        for name in ("far", "far.yaml", study, str(place)):
            assert reader.says("best", name).endswith(f"{place}/trials/0000\n")
        assert reader.says("export", "far").count("\n") == 2
        reader.says("plot", "far", "--kind", "history")
        assert (reader.home / "far-history.png").exists()
        reader.says("stop", "far")
        assert loop.wait(30) == 0
    finally:
        end(loop)
    assert reader.summary("far")["state"] == "stopped"

    again = reader.does("run", "--dir", str(other), "far.yaml", "broken.py")
    assert again.returncode == 1
    done = reader.does("status", "far")
    assert done.returncode == 4
    assert f"error BFT-1633: Several studies are named far: {study} in {place}, " in done.stderr
    assert reader.summary(study)["directory"] == str(place)

    place.rename(tmp_path / "elsewhere")
    assert reader.summary("far")["directory"] == str(other)
    for verb in ("status", "best", "stop", "export", "plot", "run"):
        with redirect_stderr(io.StringIO()) as said:
            assert reader.calls(verb, study) == 4
        assert f"The study {study} cannot be found from here: {study} in {place}" in said.getvalue()


@pytest.mark.long
@pytest.mark.parametrize(
    ("trials", "state"), [(2, "over"), pytest.param(5, "failed", marks=pytest.mark.long)]
)
def test_without_any_value_it_fails(reader: StudyUser, trials: int, state: str) -> None:
    rule = {"name": "none", "trials": trials, "most": 1}
    reader.write(f"none{trials}", **COMMAND, rule=rule, retry=0, parallel=trials)
    done = reader.does("run", f"none{trials}.yaml", "broken.py")
    assert done.returncode == 1
    assert "error BFT-1629: " in done.stderr
    summary = reader.summary(f"none{trials}")
    assert (summary["state"], summary["best"]) == (state, None)
    assert {t["stage"] for t in summary["trials"]} == {"failed"}
    assert f"is {state}; nothing is changed" in reader.says("pause", f"none{trials}")
