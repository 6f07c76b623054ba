"""Studies in directories where others can write: what is there is not trusted, and not printed raw.

Each verb ends with a code of ours, in time; no control character comes to the terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.api.documents import document
from bftrainer.cli.main import main
from bftrainer.ground.regular_file import ANY_OWNER
from bftrainer.model.errors import BftError
from bftrainer.study.directory import StudyDirectory, Wishes, read_directory
from bftrainer.study.loop import summary_of
from bftrainer.study.storage import StudyStorage, repair
from bftrainer.study.trial_table import SUMMARY_SCHEMA, row_of
from bftrainer.study.trials import Start, TrialStage
from tests.unit.study.test_study_parts import known, stored
from tests.unit.study.test_study_verbs import begun, write

Output = pytest.CaptureFixture[str]
NOBODY = 65534
ESCAPES = "\x1b]52;c;cm0gLXJmCg==\x07\x1b[2J\x9b31m\r\nerror BFT-1000: forged\u202e"
READING = (
    ("status", "own"),
    ("status", "own", "--all"),
    ("best", "own"),
    ("best", "own", "--script"),
    ("export", "own"),
    ("plot", "own", "--out", "p.png"),
)
CHANGING = (
    ("run", "own"),
    ("pause", "own"),
    ("resume", "own"),
    ("stop", "own"),
    ("add", "own", "2"),
)
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyDirectory:
    """A study that is over, in ./own.study."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BFTRAINER_SOCKET", str(tmp_path / "no-daemon"))
    monkeypatch.setenv(ANY_OWNER, "")  # verbs set it
    monkeypatch.setattr("bftrainer.study.verbs.run.REACH_S", 0.0)
    (tmp_path / "train.py").write_text("print()\n")
    write(name="own")
    found = begun()
    one = stored(values={4: 0.5}, end=TrialStage.COMPLETE, budget=4, node_s=2.0, reason="done")
    best = row_of(known(one), str(found.of_trial(0)))
    summary = replace(summary_of(found, Wishes(), "over", (), None), trials=(best,), best=0)
    found.summary.write_text(json.dumps(document(SUMMARY_SCHEMA, summary)))
    return found


def hostile(value: Any) -> Any:
    """Return a document whose every text, and name of a parameter, ends with escapes."""
    if isinstance(value, dict):
        return {k: v if k == "schema" else hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return f"{value}{ESCAPES}" if isinstance(value, str) else value


def is_clean(text: str) -> bool:
    """Return whether a text has no control character but the ends of its lines."""
    return all(line.isprintable() for line in text.split("\n"))


def printed(capsys: Output, *words: str) -> tuple[int, str]:
    status = main(["study", *words])
    said = capsys.readouterr()
    return status, said.out + said.err


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_no_text_of_a_summary_reaches_the_terminal_raw(
    words: tuple[str, ...], study: StudyDirectory, capsys: Output
) -> None:
    told = hostile(json.loads(study.summary.read_text()))
    told["trials"][0]["parameters"] |= {f"lr{ESCAPES}": f"x{ESCAPES}"}
    told["rule"] |= {f"name{ESCAPES}": 1}
    study.summary.write_text(json.dumps(told))
    _, said = printed(capsys, *words)
    assert is_clean(said), repr(said)
    assert "\nerror BFT-1000" not in said


@pytest.mark.parametrize("words", [*READING, *CHANGING], ids=" ".join)
def test_no_text_of_a_study_reaches_the_terminal_raw(
    words: tuple[str, ...], study: StudyDirectory, capsys: Output
) -> None:
    said = json.loads((study.path / "study.json").read_text())
    said["base"] = hostile(said["base"])
    said["study_id"] = hostile(said["study_id"])
    (study.path / "study.json").write_text(json.dumps(said))
    _, text = printed(capsys, *words)
    assert is_clean(text), repr(text)
    assert "\nerror BFT-1000" not in text


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to(path.with_name("elsewhere")),
    "directory": Path.mkdir,
    "huge": lambda path: path.touch() or os.truncate(path, 1 << 30),  # type: ignore[func-returns-value]
    "deep": lambda path: path.write_text("[" * 100_000),
    "null": lambda path: path.write_text("null"),
    "empty": Path.touch,
    "other words": lambda path: path.write_text('{"event": "reported", "at_s": "x"}\n'),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("study.json", ("run", "own")),
        ("study.json", ("best", "own", "--script")),
        ("summary.json", ("status", "own")),
        ("summary.json", ("export", "own", "--json")),
        ("events.jsonl", ("plot", "own", "--out", "p.png")),
        ("wishes.json", ("add", "own", "2")),
        ("plan.json", ("stop", "own")),
        ("optuna.log", ("pause", "own")),
        ("loop.lock", ("stop", "own")),
        ("wishes.lock", ("stop", "own")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_anything_in_place_of_a_file_has_a_code(
    kind: str, name: str, words: tuple[str, ...], study: StudyDirectory, capsys: Output
) -> None:
    """Passing before, too, where the file has no contents: that verb then does its work."""
    if words[0] == "pause":
        study.summary.unlink()
    (study.path / name).unlink(missing_ok=True)
    KINDS[kind](study.path / name)
    status, said = printed(capsys, *words)
    assert "Traceback" not in said
    if status:
        assert "error BFT-" in said
        assert "next: " in said
    elif kind in ("pipe", "endless", "directory"):
        pytest.fail(f"{name} was used: {said}")


@by_root
@pytest.mark.parametrize("what", ["directory", "study.json", "summary.json"])
@pytest.mark.parametrize(
    "words", [("status", "own"), ("run", "own"), ("stop", "own")], ids=" ".join
)
def test_another_user_s_study_is_refused_unless_its_owner_is_trusted(
    what: str, words: tuple[str, ...], study: StudyDirectory, capsys: Output
) -> None:
    if (what, words[0]) in {
        ("study.json", "status"),
        *(("summary.json", x) for x in ("run", "stop")),
    }:
        pytest.skip("it does not read that one")
    os.chown(study.path if what == "directory" else study.path / what, NOBODY, -1)
    status, said = printed(capsys, *words)
    assert status != 0
    assert "error BFT-1636" in said
    assert f"it belongs to another user (uid {NOBODY})" in said
    assert "--any-owner" in said
    if words[0] == "status":
        assert printed(capsys, *words, "--any-owner")[0] == 0


@by_root
def test_the_option_is_handed_to_the_workers(study: StudyDirectory, capsys: Output) -> None:
    del study
    words = (
        "submit",
        "--dry-run",
        "--json",
        "--interpreter",
        sys.executable,
        "--runtime",
        "command",
    )
    assert main([*words, "--any-owner", "train.py"]) == 0
    assert [ANY_OWNER, "1"] in json.loads(capsys.readouterr().out)["spec"]["environment"]


DAMAGED = {
    "null": b"null\n",
    "a number": b"1\n",
    "a list": b"[]\n",
    "no fields": b"{}\n",
    "unknown op_code": b'{"op_code": 99, "worker_id": "w"}\n',
    "op_code of text": b'{"op_code": "x", "worker_id": "w"}\n',
    "deep": b"[" * 100_000 + b"\n",
    "not UTF-8": b'{"op_code": 0, "worker_id": "\xff"}\n',
    "NaN as a value": b'{"op_code": 7, "worker_id": "w", "trial_id": 0, "step": 1,'
    b' "intermediate_value": NaN}\n',
    "infinite value": b'{"op_code": 7, "worker_id": "w", "trial_id": 0, "step": 1,'
    b' "intermediate_value": Infinity}\n',
    "text as a value": b'{"op_code": 7, "worker_id": "w", "trial_id": 0, "step": 1,'
    b' "intermediate_value": "much"}\n',
    "budget of text": b'{"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr":'
    b' {"budget": "much"}}\n',
    "climbed to null": b'{"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr":'
    b' {"climbed": null}}\n',
    "orders of text": b'{"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr":'
    b' {"orders": {"a": 1}}}\n',
    "node-seconds of NaN": b'{"op_code": 8, "worker_id": "w", "trial_id": 0, "user_attr":'
    b' {"node_s": NaN}}\n',
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_any_damage_of_the_storage_is_one_code(kind: str, study: StudyDirectory) -> None:
    storage = StudyStorage(study.storage, study.study_id, study.document)
    storage.create(Start(budget=2), storage.draw(0))
    assert len(storage.trials()) == 1
    with study.storage.open("ab") as file:
        file.write(DAMAGED[kind])
    repair(study.storage)
    for use in (
        storage.trials,
        lambda: StudyStorage(study.storage, study.study_id, study.document).trials(),
    ):
        with pytest.raises(BftError) as refused:
            use()
        assert refused.value.code == "BFT-1636"
        assert str(study.storage) in refused.value.cause


def test_a_study_is_read_as_it_began(study: StudyDirectory) -> None:
    """The fixture's study is whole: what the tests above see is what they have changed."""
    assert read_directory(study.path) == study
