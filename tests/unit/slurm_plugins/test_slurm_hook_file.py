"""The hook's file: who may write it, what is read of it, and what the scripts do to it."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.tail import MOST_BYTES, MOST_LINE_BYTES, Lines
from slurm_plugins.hook import main as hook_main
from slurm_plugins.hook import scripts
from slurm_plugins.hook.main import main
from slurm_plugins.hook.scripts import FIRST_LINE, MAX_BYTES, OLD
from slurm_plugins.hook.watch import HookFile
from tests.support.relays import end

ME = os.getuid()
NOBODY = 65534
needs_root = pytest.mark.skipif(ME != 0, reason="only root can give a file away")
A_LOOK_IS_WANTED = Announcement(at_s=0.0, partition="")


def told(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """What the scripts have made."""
    directory = tmp_path / "hook"
    directory.mkdir(mode=0o755)
    file = directory / "told"
    file.write_text(FIRST_LINE + "\n")
    file.chmod(0o644)
    return file


@pytest.fixture
def hook(path: Path) -> Iterator[HookFile]:
    file = HookFile(path, "bf", owner_uid=ME)
    yield file
    file.close()


def read(file: HookFile, timeout_s: float = 10.0) -> list[float]:
    ready, _, _ = select.select([file], [], [], timeout_s)
    assert ready, "nobody was woken"
    return [said.at_s for said in file.read()]


class TestRead:
    def test_lines_come_out_once_they_are_whole(self, path: Path, hook: HookFile) -> None:
        told(path, end(1) + "end\t2\t5")
        assert read(hook) == [1.0]
        told(path, "\tbatch\tn1\n")
        assert read(hook) == [2.0]
        assert hook.read() == ()

    def test_our_own_jobs_are_no_news(self, path: Path, hook: HookFile) -> None:
        told(path, end(1).replace("batch", "bf") + end(2))
        assert read(hook) == [2.0]

    def test_what_was_said_before_is_left_to_the_look(self, path: Path) -> None:
        told(path, end(1))
        hook = HookFile(path, "bf", owner_uid=ME)
        told(path, end(2))
        assert read(hook) == [2.0]
        hook.close()
        assert path.exists(), "it is not ours"

    def test_nothing_is_lost_when_a_fresh_file_takes_its_place(
        self, path: Path, hook: HookFile
    ) -> None:
        numbers: list[float] = []
        for number in range(0, 30, 3):
            # A writer that opened the file before it was replaced, and one that did not.
            with path.open("a") as late:
                told(path, end(number))
                path.rename(str(path) + OLD)
                late.write(end(number + 1))
            told(path, end(number + 2))
            numbers += read(hook)
        assert numbers == [float(n) for n in range(30)]

    def test_a_file_that_is_gone_is_read_again_when_it_is_back(
        self, path: Path, hook: HookFile
    ) -> None:
        path.unlink()
        assert read(hook) == []
        told(path, end(1))
        assert read(hook) == [1.0]

    def test_a_file_that_was_cut_is_read_from_its_begin(self, path: Path, hook: HookFile) -> None:
        told(path, end(1) * 100 + "end\t2")
        assert len(read(hook)) == 100
        os.truncate(path, 0)
        told(path, end(3))
        assert read(hook) == [3.0]

    def test_of_more_than_can_be_read_at_once_a_look_is_wanted(
        self, path: Path, hook: HookFile
    ) -> None:
        told(path, end(1) * (MOST_BYTES // 10) + "end\t2")
        assert hook.read() == (A_LOOK_IS_WANTED,)
        told(path, "\t5\tbatch\tn1\n" + end(3))
        assert [said.at_s for said in hook.read()] == [3.0], "the torn line is none"

    def test_a_line_without_end_is_not_kept(self) -> None:
        lines, kept = Lines(), 0
        for _ in range(40):
            assert lines.add(b"x" * 20_000) == []
            kept = max(kept, len(lines._rest))
        assert kept <= MOST_LINE_BYTES
        (torn,) = lines.add(b"\nend")
        assert torn.startswith("?"), "its end is not taken for a line"
        assert lines.add(b"\n") == ["end"]

    def test_any_bytes_are_survived(self, path: Path, hook: HookFile) -> None:
        with path.open("ab") as file:
            file.write(bytes(range(256)) * 20 + b"\n\xff\xfe\0\n" + end(1).encode())
        assert read(hook) == [1.0]


class TestEpilog:
    @pytest.fixture
    def ends(self, path: Path, tmp_path: Path) -> Callable[[], None]:
        _, ending = scripts.install(tmp_path, path)
        job = {"SLURM_JOB_ID": "5", "SLURM_JOB_PARTITION": "p", "SLURM_JOB_NODELIST": "n[1-2]"}
        environment = {**os.environ, **job}

        def ends() -> None:
            subprocess.run([ending], env=environment, check=True, timeout=30)

        return ends

    def test_it_appends_a_line(self, hook: HookFile, ends: Callable[[], None]) -> None:
        ends()
        assert [(a.partition, a.nodes) for a in hook.read()] == [("p", ("n1", "n2"))]

    def test_it_begins_another_file_when_that_is_full(
        self, path: Path, hook: HookFile, ends: Callable[[], None]
    ) -> None:
        for _ in range(3):
            with path.open("ab") as file:
                file.write(b"x" * MAX_BYTES + b"\n")
            hook.read()
            ends()
            assert [a.nodes for a in hook.read()] == [("n1", "n2")]
            assert path.read_text().startswith(FIRST_LINE + "\nend\t")
        assert sorted(p.name for p in path.parent.iterdir()) == ["told", "told" + OLD]

    @pytest.mark.parametrize("kind", ["nothing", "pipe", "link", "full disk", "directory"])
    def test_it_writes_only_into_a_file_of_its_own(
        self, path: Path, tmp_path: Path, ends: Callable[[], None], kind: str
    ) -> None:
        own = tmp_path / "own"
        own.write_text("secret")
        path.unlink()
        match kind:
            case "pipe":
                os.mkfifo(path)
            case "link":
                path.symlink_to(own)
            case "full disk":
                path.symlink_to("/dev/full")
            case "directory":
                path.mkdir()
        ends()
        assert own.read_text() == "secret"
        assert path.exists() == (kind != "nothing")

    @needs_root
    def test_a_strangers_file_is_left_alone(self, path: Path, ends: Callable[[], None]) -> None:
        os.chown(path, NOBODY, -1)
        ends()
        assert path.read_text() == FIRST_LINE + "\n"


class TestCommand:
    @pytest.fixture(autouse=True)
    def _below(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Judge no directory above this one: /tmp is for everybody."""
        monkeypatch.setattr(hook_main, "_TOP", tmp_path)
        (tmp_path / "slurm.conf").write_text(f"ClusterName=c\nSlurmUser={ME}\n")

    def argv(self, tmp_path: Path, *more: str) -> list[str]:
        file = str(tmp_path / "hook" / "told")
        return ["--file", file, "--directory", str(tmp_path), *more]

    def test_it_writes_both_and_says_what_to_change(self, tmp_path: Path) -> None:
        argv = self.argv(tmp_path)
        result = CliRunner().invoke(main, argv)
        assert result.exit_code == 0, result.output
        assert "JobSubmitPlugins=lua" in result.output
        assert f"hook_file={tmp_path}/hook/told" in result.output
        assert f"{tmp_path}/hook/told" in (tmp_path / "job_submit.lua").read_text()
        made = (tmp_path / "hook").stat()
        assert (made.st_uid, made.st_mode & 0o7777) == (ME, 0o755)
        assert CliRunner().invoke(main, argv).exit_code == 0, "safe to run twice"

    @needs_root
    def test_the_directory_is_slurms_and_its_group_may_read(self, tmp_path: Path) -> None:
        (tmp_path / "slurm.conf").write_text(" slurmuser = nobody\n")
        result = CliRunner().invoke(main, self.argv(tmp_path, "--group", "daemon"))
        assert result.exit_code == 0, result.output
        made = (tmp_path / "hook").stat()
        assert (made.st_uid, made.st_gid, made.st_mode & 0o7777) == (NOBODY, 1, 0o2750)

    @pytest.mark.parametrize("which", ["directory", "one above"])
    def test_a_place_where_others_may_write_is_refused(self, tmp_path: Path, which: str) -> None:
        place_ = tmp_path / "above" / "hook"
        place_.mkdir(parents=True)
        (place_ if which == "directory" else place_.parent).chmod(0o1777)
        argv = ["--file", str(place_ / "told"), "--directory", str(tmp_path)]
        result = CliRunner().invoke(main, argv)
        assert result.exit_code == 2
        assert "BFT-1232" in result.output
        assert "may be written by others" in result.output
        assert not (tmp_path / "job_submit.lua").exists()

    def test_a_place_behind_a_link_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "hook").symlink_to(tmp_path)
        result = CliRunner().invoke(main, self.argv(tmp_path))
        assert result.exit_code == 2
        assert "not its real path" in result.output

    def test_nobody_of_that_name(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(main, self.argv(tmp_path, "--group", "no-such-group"))
        assert result.exit_code == 2
        assert "BFT-1232" in result.output

    def test_a_script_of_the_site_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "job_submit.lua").write_text("-- ours\n")
        result = CliRunner().invoke(main, self.argv(tmp_path))
        assert result.exit_code == 2
        assert "BFT-1232" in result.output
        assert (tmp_path / "job_submit.lua").read_text() == "-- ours\n"

    @pytest.mark.parametrize("name", ["hook", '/tmp/a"b', "/tmp/a'b", "/tmp/a\nb", "/tmp/a\\b"])
    def test_names_that_cannot_stand_in_a_script(self, name: str, tmp_path: Path) -> None:
        result = CliRunner().invoke(main, ["--file", name, "--directory", str(tmp_path)])
        assert result.exit_code == 2
        assert "BFT-1232" in result.output
        assert [p.name for p in tmp_path.iterdir()] == ["slurm.conf"]
