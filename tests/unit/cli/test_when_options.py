"""Times, dependencies and arrays as the command line takes them."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from bftrainer.api.admission import check_spec
from bftrainer.cli.option_values import ArrayOption, parse_array, parse_begin, parse_ids
from bftrainer.cli.submission import specs_of
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec

NOW = datetime(2031, 12, 24, 22, 0).timestamp()  # noqa: DTZ001 - local, as for sbatch


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("now", 0), ("now+90", 90), ("now+5s", 5), ("now+1hour", 3600), ("now+2hours", 7200),
        ("now+3minutes", 180), ("now+1day", 86_400), ("now+2weeks", 1_209_600),
        ("22:30", 1800), ("22:00:30", 30), ("21:00", 23 * 3600), ("2031-12-24T23:00", 3600),
        ("2031-12-24T22:00:05", 5), ("2031-12-25", 7200), ("2031-12-24T21:00", -3600),
    ],
)  # fmt: skip
def test_times_are_those_of_sbatch(text: str, after_s: float) -> None:
    assert parse_begin(text, NOW) == NOW + after_s


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now+",
        "now+1year",
        "now-1",
        "25:00",
        "10",
        "2031-13-01",
        "9999-12-31",
        "now+1" * 9,
        "\u0661",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="BFT-1045"):
        parse_begin(text, NOW)


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("7", (7,), None),
        ("5,1-3,2", (1, 2, 3, 5), None),
        ("0-10:5%2", (0, 5, 10), 2),
        ("0-999", tuple(range(1000)), None),
    ],
)
def test_arrays_are_those_of_sbatch(text: str, indices: tuple[int, ...], limit: int | None) -> None:
    assert parse_array(text) == ArrayOption(indices=indices, limit=limit)


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "0-1000", "0-999999", "0-999,2000", "1%", "1%0", "0-4:0", "-1", "1,,2"]
)
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="BFT-1046"):
        parse_array(text)


def test_ids_are_listed_once_and_nothing_else_is_one() -> None:
    assert parse_ids("t1, t22,t1") == ("t1", "t22")
    for text in ("", "x1", "t1,", "t1:t2", "t" + "9" * 19, ",".join(f"t{i}" for i in range(1001))):
        with pytest.raises(UsageError, match="BFT-1044"):
            parse_ids(text)


def test_each_member_of_an_array_has_its_name_index_and_directory() -> None:
    spec = TrainerSpec(
        name="n", user="u", script="/s", checkpoint_dir="/c/bft-n",
        environment=(("A", "1"), ("BFT_ARRAY_INDEX", "9")), begin_s=time.time(),
    )  # fmt: skip
    assert specs_of(spec, None, has_own_dir=False) == (spec,)
    array = parse_array("1,30%2")
    first, last = specs_of(spec, array, has_own_dir=False)
    check_spec(first)
    assert (first.name, last.name) == ("n_1", "n_30")
    assert (first.checkpoint_dir, last.checkpoint_dir) == ("/c/bft-n_1", "/c/bft-n_30")
    assert last.environment == (("A", "1"), ("BFT_ARRAY_INDEX", "30"))
    assert first.array_id == last.array_id
    assert (first.array_limit, last.array_limit) == (2, 2)
    own = specs_of(spec, array, has_own_dir=True)
    assert [one.checkpoint_dir for one in own] == ["/c/bft-n/1", "/c/bft-n/30"]
