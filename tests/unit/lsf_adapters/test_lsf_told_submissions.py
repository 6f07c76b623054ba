"""Files that users' scripts write: what is read of them, whatever they contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.batch.announcer import Announcement
from bftrainer.model.cluster import Job
from lsf_adapters.notifications.esub import submission
from lsf_adapters.notifications.script import AFTER, BEFORE, FIRST_LINE, MOST_BYTES, install, script

T0 = 1_795_338_829.0
SLOTS = {f"n{i:03}": 4 for i in range(1, 5)}
# As a real bsub wrote it (volclava 2.2), without what the script leaves out.
RECORDED = """\
LSB_SUB_QUEUE="normal"
LSB_SUB_EXCLUSIVE=Y
LSB_SUB_DEPEND_COND="ended(1)"
LSB_SUB_RES_REQ="span[ptile=1] rusage[mem=10]"
LSB_SUB_HOSTS="n001 n002 "
LSB_SUB_RLIMIT_RUN=420
LSB_SUB_NUM_PROCESSORS=2
LSB_SUB_MAX_NUM_PROCESSORS=2
"""


def said(text: str) -> Announcement | None:
    whole = f"{FIRST_LINE}\n{text}"
    return submission(whole, user="ada", at_s=T0, number=3, slots_of=SLOTS)


def job(text: str) -> Job:
    found = said(text)
    assert found is not None
    assert found.job is not None
    return found.job


def test_a_recorded_submission() -> None:
    found = job(RECORDED)
    assert (found.job_id, found.user, found.partitions) == ("announced-3", "ada", ("normal",))
    assert (found.n_nodes, found.time_limit_s, found.submit_s) == (2, 420.0, T0)
    assert found.required_nodes == ("n001", "n002")
    assert (found.can_share, found.is_entitled) == (False, False)


def test_the_default_of_everything() -> None:
    found = job("")
    assert (found.partitions, found.n_nodes, found.time_limit_s) == ((), 1, None)
    assert found.is_entitled


@pytest.mark.parametrize("queues", ["a b", "", "  "])
def test_one_of_several_queues_is_any(queues: str) -> None:
    assert job(f'LSB_SUB_QUEUE="{queues}"\n').partitions == ()


@pytest.mark.parametrize(
    "line", ["LSB_SUB_HOLD=Y", f"LSB_SUB_BEGIN_TIME={T0 + 60:.0f}", 'LSB_SUB_DEPEND_COND="a"']
)
def test_a_job_that_cannot_start_yet_is_not_entitled(line: str) -> None:
    found = job(f"{line}\n")
    assert not found.is_entitled
    assert found.reason


def test_quotes_inside_a_value() -> None:
    assert job('LSB_SUB_DEPEND_COND="ended(\\"a b\\")"\n').waits_for == 'ended("a b")'


@pytest.mark.parametrize("text", ["LSB_SUB_MODIFY=Y\n", "LSB_SUB_QUEUE=q\nLSB_SUB_MODIFY=x\n"])
def test_a_change_of_a_job_is_none(text: str) -> None:
    assert said(text) is None


@pytest.mark.parametrize("text", ["", "submit\n", FIRST_LINE + "0\n", f"\n{FIRST_LINE}\n"])
def test_a_file_of_something_else(text: str) -> None:
    assert submission(text, user="ada", at_s=T0, number=3, slots_of=SLOTS) is None


@pytest.mark.parametrize("number", ["9" * 400, "-1", "1e9", "NaN", '"', "", "1.5", "٣"])
def test_odd_numbers(number: str) -> None:
    found = job(f"LSB_SUB_NUM_PROCESSORS={number}\nLSB_SUB_RLIMIT_RUN={number}\n")
    assert (found.n_nodes, found.time_limit_s) == (1, None)


def test_a_value_with_line_breaks_says_nothing_twice() -> None:
    text = 'LSB_SUB_NUM_PROCESSORS=8\nLSB_SUB_RES_REQ="\nLSB_SUB_NUM_PROCESSORS=800\n"\n'
    assert job(text).n_nodes == 2


@pytest.mark.parametrize("name", ["hook", '/tmp/a"b', "/tmp/a'b", "/tmp/a\nb", "/tmp/a\\b"])
def test_names_that_cannot_stand_in_the_script(name: str) -> None:
    with pytest.raises(ValueError, match="plain absolute path"):
        script(Path(name))


@pytest.mark.parametrize("name", [AFTER, BEFORE])
def test_the_script_is_installed(tmp_path: Path, name: str) -> None:
    file = install(tmp_path, tmp_path / "place", name)
    assert file == tmp_path / name
    assert file.stat().st_mode & 0o777 == 0o755
    text = file.read_text()
    assert f"%.{MOST_BYTES}s" in text
    without_paths = text.replace(str(tmp_path), "")  # its number may be any
    assert "97" not in without_paths, "the status with which esub refuses"
