"""The parts of a relay: repeated and late lines, words, keys, the policy's options, the unit."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.batch.batch_system import OptionError
from bftrainer.batch.tail import MOST_LINE_BYTES
from bftrainer.fleet.wire.keys import generate_pair, load_pair
from slurm_plugins.adapter import create
from slurm_plugins.hook.main import main
from slurm_plugins.hook.relay import RelayError, RelayWord, decode, encode, key_of, shown
from slurm_plugins.hook.relay_receiver import KEPT_S, LATE_S, MOST_KEPT, WINDOW_S, Lateness, Repeats
from slurm_plugins.hook.scripts import RELAY_SERVICE_NAME, relay_service
from slurm_plugins.site_files import site_files
from tests.unit.slurm_plugins.test_slurm_doctor import GOOD

KEY = shown(generate_pair().public)


class TestRepeats:
    @given(st.lists(st.sampled_from("xyz"), max_size=12), st.data())
    def test_of_two_that_follow_one_file_each_line_counts_once(
        self, lines: list[str], data: st.DataObject
    ) -> None:
        repeats, left, heard = Repeats(), {b"a": list(lines), b"b": list(lines)}, list[str]()
        while any(left.values()):
            teller = data.draw(st.sampled_from([t for t, rest in left.items() if rest]))
            line = left[teller].pop(0)
            if not repeats.is_repeated(line, teller, 1.0):
                heard.append(line)
        assert sorted(heard) == sorted(lines)

    def test_equal_lines_of_one_relay_are_two_jobs(self) -> None:
        repeats = Repeats()
        assert [repeats.is_repeated("x", b"a", 1.0) for _ in range(3)] == [False] * 3

    def test_it_remembers_long_enough_and_not_for_ever(self) -> None:
        repeats = Repeats()
        repeats.is_repeated("x", b"a", 1.0)
        assert repeats.is_repeated("x", b"b", 1.0 + KEPT_S + 0.1)
        assert not repeats.is_repeated("x", b"c", 100.0)

    def test_a_flood_is_not_kept(self) -> None:
        repeats = Repeats()
        for number in range(3 * MOST_KEPT):
            repeats.is_repeated(str(number), b"a", 1.0)
        assert len(repeats._now) + len(repeats._before) <= 2 * MOST_KEPT


class TestLateness:
    def test_the_fastest_word_is_the_measure_whatever_the_clocks_show(self) -> None:
        late = Lateness()
        assert not late.is_late(5_000.0, 10.0)
        assert not late.is_late(5_001.0, 11.2)
        assert late.is_late(5_002.0, 12.1 + LATE_S)

    def test_it_remains_late_after_a_long_stall(self) -> None:
        late = Lateness()
        assert not late.is_late(0.0, 0.0)
        assert late.is_late(1.0, 10 * WINDOW_S)
        assert late.is_late(2.0, 10 * WINDOW_S)

    def test_clocks_may_drift(self) -> None:
        late = Lateness()
        for second in range(100_000):
            assert not late.is_late(float(second), second * 1.0005)


class TestWords:
    def test_they_come_back(self) -> None:
        word = RelayWord(sent_s=1.5, lines=("submit\t1\té", "\ufffd"), is_too_much=True)
        assert decode(encode(word)) == word

    @pytest.mark.parametrize(
        "frame",
        [
            b"", b"[]", b"{", b'{"sent_s": 1e999}', b'{"sent_s": "1"}', b'{"v": 2, "sent_s": 1}',
            b'{"sent_s": 1, "more": 1}', b'{"sent_s": 1, "lines": [1]}', b"[" * 5000,
            encode(RelayWord(sent_s=1.0, lines=("x" * MOST_LINE_BYTES,))).replace(b"x", b"xx"),
            encode(RelayWord(sent_s=1.0, lines=("x" * 1000,) * 70)),
        ],
    )  # fmt: skip
    def test_what_no_relay_sends_is_refused(self, frame: bytes) -> None:
        with pytest.raises(RelayError):
            decode(frame)

    def test_a_key_is_shown_without_signs_that_need_quotes(self) -> None:
        public = generate_pair().public
        assert key_of(shown(public)) == public
        assert shown(public).isalnum()
        for wrong in ("", "zz" * 32, shown(public)[1:], public):
            with pytest.raises(ValueError, match=r"\w"):
                key_of(wrong)


class TestOptions:
    relay: ClassVar[dict[str, Any]] = {
        "hook_relay": "tcp://*:7321",
        "hook_relay_keys": [KEY],
        "hook_relay_key_file": "/x/key",
    }

    def test_one_relay_and_several_as_words(self) -> None:
        create(self.relay)
        create({**self.relay, "hook_relay_keys": f"{KEY},{KEY}"})

    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"hook_relay": "tcp://:1"}, "tcp://HOST:PORT"),
            ({"hook_relay": "tcp://h:0"}, "tcp://HOST:PORT"),
            ({"hook_relay_keys": []}, "hook_relay_keys"),
            ({"hook_relay_keys": ["x"]}, "64 hexadecimal digits"),
            ({"hook_relay_key_file": None}, "hook_relay_key_file"),
            ({"hook_file": "/x/told"}, "exclude each other"),
        ],
    )
    def test_half_a_description_is_refused(self, changed: dict[str, Any], why: str) -> None:
        given = {k: v for k, v in {**self.relay, **changed}.items() if v is not None}
        with pytest.raises(OptionError, match=why) as raised:
            create(given)
        assert raised.value.code == "BFT-1220"


class TestCommand:
    def test_a_key_is_made_once(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        first = CliRunner().invoke(main, ["--make-key", str(path)])
        assert first.exit_code == 0, first.output
        assert first.output.strip() == shown(load_pair(path).public)
        assert CliRunner().invoke(main, ["--make-key", str(path)]).output == first.output
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        open_to_all = CliRunner().invoke(main, ["--make-key", str(path)])
        assert (open_to_all.exit_code, "BFT-1302" in open_to_all.output) == (5, True)

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            (("--relay", "udp://h:1"), "BFT-1515"),
            (("--daemon-key", "x"), "BFT-1515"),
            (("--key", "/nowhere"), "BFT-1302"),
        ],
    )
    def test_it_says_what_is_wrong(
        self, tmp_path: Path, changed: tuple[str, str], code: str
    ) -> None:
        assert CliRunner().invoke(main, ["--make-key", str(tmp_path / "key")]).exit_code == 0
        argv = {
            "--file": str(tmp_path / "told"), "--directory": str(tmp_path),
            "--relay": "tcp://127.0.0.1:7", "--key": str(tmp_path / "key"), "--daemon-key": KEY,
        } | dict([changed])  # fmt: skip
        said = CliRunner().invoke(main, [word for pair in argv.items() for word in pair])
        assert said.exit_code in (2, 5)
        assert f"error {code}" in said.output
        assert "next: " in said.output


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    unit = tmp_path / RELAY_SERVICE_NAME
    unit.write_text(
        relay_service(
            endpoint="tcp://login1:7321", daemon_key=KEY, account="nobody", program="/bin/true",
            file=Path("/run/bftrainer-hook/told"), directory=Path("/etc/slurm"),
        )
    )  # fmt: skip
    environment = {**os.environ, "SYSTEMD_PAGER": ""}
    for argv in (
        ["systemd-analyze", "verify", str(unit)],
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(unit)],
    ):
        said = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert said.returncode == 0, said.stdout[-600:] + said.stderr


def test_site_init_writes_it_where_relays_are_wanted() -> None:
    files = {file.name: file.text for file in site_files(GOOD, TestOptions.relay)}
    assert "--relay tcp://DAEMON_HOST:7321" in files[RELAY_SERVICE_NAME]
    assert "hook_file" not in files["policy.yaml"]
    assert RELAY_SERVICE_NAME in files["CHECKLIST.md"]
    assert RELAY_SERVICE_NAME not in {file.name for file in site_files(GOOD, {})}
