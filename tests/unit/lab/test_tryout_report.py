"""What a try says of what it found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bftrainer
from bftrainer.lab.try_records import EpochUse, SpeedBySize
from bftrainer.lab.tryout import TryReport, WorkerKill, as_text, evidence, wrong
from bftrainer.lab.verbs.tryout import _print_next

WHOLE = tuple(EpochUse(epoch=n, of=10, used=10) for n in range(3))
REPORT = TryReport(
    script="own.py",
    state="finished",
    reason="",
    seconds=12.0,
    nodes=3,
    failures=1,
    rescales=2,
    pauses_s=(0.05, 0.11),
    kill=WorkerKill(at_s=2.0, rank=0, size=3, step=7),
    speeds=(SpeedBySize(size=1, samples_per_s=100.0), SpeedBySize(size=3, samples_per_s=290.0)),
    epochs=WHOLE,
    last_lines=("accuracy 0.9",),
)
CUT = EpochUse(epoch=3, of=10, used=4)


@pytest.mark.parametrize("epochs", [WHOLE, (*WHOLE, CUT)], ids=["whole", "cut at the end"])
def test_nothing_is_wrong_with_samples_used_once(epochs: tuple[EpochUse, ...]) -> None:
    assert wrong(replace(REPORT, epochs=epochs)) is None


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"state": "failed", "reason": "BFT-1410: no data"}, "BFT-1053", "no data"),
        ({"state": "failed", "reason": "BFT-1423: nothing"}, "BFT-1057", "bftrainer.elastic"),
        ({"state": "failed", "reason": "BFT-1455: The disk is"}, "BFT-1457", "not by a mistake"),
        ({"state": "failed", "reason": "BFT-1456: It failed"}, "BFT-1457", "not by a mistake"),
        ({"state": "failed", "reason": "BFT-2201: The disk of"}, "BFT-1457", "not by a mistake"),
        ({"state": "failed", "reason": "BFT-1310: It was killed"}, "BFT-1053", "was killed"),
        ({"state": "running"}, "BFT-1055", "had not finished after 12 s"),
        ({"epochs": ()}, "BFT-1054", "no update was recorded"),
        ({"epochs": (), "state": "queued"}, "BFT-1055", "not finished"),
        ({"epochs": (CUT, *WHOLE)}, "BFT-1054", "epoch 3 ended after 4 of its 10 samples"),
        (
            {"epochs": (replace(WHOLE[0], missed=2, repeated=1),), "state": "running"},
            "BFT-1054",
            "epoch 0 used 1 sample again and left out 2",
        ),
        ({"epochs": (replace(WHOLE[0], twice=(4,)),)}, "BFT-1054", "sample 4 more than once"),
    ],
)
def test_what_is_wrong_has_a_code_and_a_next_step(
    changes: dict[str, object], code: str, said: str
) -> None:
    found = wrong(replace(REPORT, **changes))  # type: ignore[arg-type]  # test values
    assert found is not None
    assert found.code == code
    assert said in found.cause
    assert found.next_step


def test_what_breaks_beside_the_script_is_not_told_as_its_mistake() -> None:
    for reason, step in (("BFT-1455: Full.", "Make room"), ("BFT-1456: X.", "need not change")):
        found = wrong(replace(REPORT, state="failed", reason=reason))
        assert found is not None
        assert step in found.next_step
        assert "Correct the script" not in found.next_step


def test_the_page_has_all_figures_and_none_that_were_not_measured() -> None:
    text = as_text(replace(REPORT, epochs=(*WHOLE, CUT)))
    for said in (
        "own.py finished after 12 s, 3 nodes",
        "2, pauses of 0.08 s (median) to 0.11 s",
        "rank 0 of 3 workers after step 7, at 2.0 s",
        "100 with 1 worker, 290 with 3 workers",
        "every one exactly once in each of 3 epochs; 4 of 10 in the last",
        "    accuracy 0.9",
    ):
        assert said in text
    assert "failures" not in text, "the kill is no failure of the script"
    assert "  failures    1" in as_text(replace(REPORT, failures=2))
    nothing = replace(REPORT, epochs=(), speeds=(), pauses_s=(), rescales=0, kill=None)
    assert as_text(nothing).splitlines()[0] == "own.py finished after 12 s, 3 nodes"
    assert "samples" not in as_text(nothing)
    short = as_text(replace(REPORT, pauses_s=(), rescales=0, kill=None))
    assert "none; it ended before nodes came or went" in short
    assert "nobody; two nodes never trained together" in short


def test_speeds_of_several_sizes_are_no_forecast() -> None:
    note = "share this machine's processors"
    assert note in as_text(REPORT)
    assert note not in as_text(replace(REPORT, speeds=REPORT.speeds[:1]))


def test_of_what_a_script_printed_only_its_own_is_shown() -> None:
    ours = Path(bftrainer.__file__).parent / "elastic" / "worker.py"
    lines = [
        "epoch 1",
        "Traceback (most recent call last):",
        f'  File "{ours}", line 310, in _run_script',
        "    status = status_of(config.script)",
        "             ^^^^^^^^^",
        '  File "<frozen runpy>", line 291, in run_path',
        '  File "/home/ann/own.py", line 8, in <module>',
        "    deep()",
        "KeyError: 'x'",
    ]
    shown = [*lines[:2], *lines[6:8]]
    assert (
        evidence(lines, "BFT-1410: The script raised KeyError: 'x'. Raised at own.py:8.") == shown
    )
    assert evidence(lines, "BFT-1310: It was killed.") == [*shown, lines[-1]]


def test_a_script_whose_loss_is_no_number_is_not_to_be_submitted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _print_next("train.py", has_finite_loss=False)
    said = capsys.readouterr().err
    assert "bftrainer help BFT-1435" in said
    assert "submit train.py" not in said
    _print_next("train.py", has_finite_loss=True)
    assert "bftrainer submit train.py" in capsys.readouterr().err
