"""What packages add for administrators: manual pages, completions, the changelog."""

from __future__ import annotations

import configparser
import gzip
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from bftrainer import __version__
from bftrainer.batch.process import Completed, run
from bftrainer.cli.main import all_verbs, cli
from bftrainer.site.policy.model import SitePolicy
from slurm_plugins.hook.main import main as slurm_hook
from slurm_plugins.testcluster.main import main as slurm_cluster
from tests.support.memory_service import MemoryService, serving
from tests.support.snapshots import record
from tests.unit.cli.test_cli_main import HEAVY

ROOT = Path(__file__).parents[3]
AT_S = 1_795_748_400  # 2026-11-27


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (scripts/install_system.sh packages)")


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is written below /usr/share."""
    stage = tmp_path_factory.mktemp("stage")
    argv = (sys.executable, str(ROOT / "packaging" / "write_pages.py"), str(stage), "Ann <a@b.c>")
    done = run(argv, timeout_s=120, env={**os.environ, "SOURCE_DATE_EPOCH": str(AT_S)})
    assert done.is_ok, done.stderr
    return stage / "usr" / "share"


@pytest.fixture(scope="module")
def pages(share: Path) -> dict[str, str]:
    """The source of each manual page, by its file's name."""
    files = {one.name.removesuffix(".gz"): one for one in (share / "man").rglob("*.gz")}
    return {name: gzip.decompress(one.read_bytes()).decode() for name, one in files.items()}


def test_programs_verbs_and_the_policy_have_manual_pages(pages: dict[str, str]) -> None:
    verbs = {f"bftrainer-{verb}.{8 if verb == 'daemon' else 1}" for verb in all_verbs()}
    others = {"bftrainer.1", "bftrainer-slurm-hook.8", "bftrainer-testcluster.1"}
    assert set(pages) == verbs | others | {"bftrainer-policy.5"}
    text = pages["bftrainer-status.1"]
    assert r".TH BFTRAINER\-STATUS 1 2026-11-27 " in text
    assert "\n" + r"bftrainer\-status \- Show the daemon" in text
    assert "\nbftrainer status t1\n" in text
    for name in SitePolicy.model_fields:
        assert f"\n.TP\n\\fB{name}\\fR: " in pages["bftrainer-policy.5"], name


def contexts() -> Iterator[click.Context]:
    """Yield each program and verb as click sees it."""
    todo: list[tuple[click.Command, str, click.Context | None]]
    todo = [(cli, "bftrainer", None), (slurm_hook, "bftrainer-slurm-hook", None)]
    todo.append((slurm_cluster, "bftrainer-testcluster", None))
    for command, name, parent in todo:
        context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
        yield context
        if isinstance(command, click.Group):
            verbs = {
                verb: command.get_command(context, verb) for verb in command.list_commands(context)
            }
            todo += [(inner, verb, context) for verb, inner in verbs.items() if inner]


def test_every_option_of_every_verb_is_in_its_page(pages: dict[str, str]) -> None:
    by_title = {name.rpartition(".")[0]: text for name, text in pages.items() if name[-1] != "5"}
    missing = []
    for context in contexts():
        words = context.command_path.split()
        title = next(one for one in ("-".join(words[:2]), words[0]) if one in by_title)
        text = by_title[title]
        if title != "-".join(words):  # a verb of a group
            heading = "\n.SS {}\n".format(context.command_path.replace("-", r"\-"))
            text = text.partition(heading)[2].partition("\n.SS ")[0]
        shown = set(re.findall(r"\\fB(\S+?)\\fR", text.replace(r"\-", "-")))
        for option in context.command.get_params(context):
            if isinstance(option, click.Option) and not option.hidden:
                missing += [(words, name) for name in option.opts if name not in shown]
    assert missing == []


@pytest.mark.parametrize(
    "checks",
    [
        "man --warnings -E UTF-8 -Tutf8 -l",
        "groff -man -Tutf8 -ww -z",
        "mandoc -T lint -W warning",
    ],
)
def test_nothing_is_wrong_with_a_page(pages: dict[str, str], tmp_path: Path, checks: str) -> None:
    program, *options = checks.split()
    need(program)
    for name, text in pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = run((program, *options, *(str(tmp_path / name) for name in pages)), timeout_s=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "BFTRAINER-STATUS(1)" in done.stdout if program == "man" else not done.stdout


@pytest.fixture(scope="module")
def roff() -> ModuleType:
    """The module beside write_pages.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("roff", ROOT / "packaging" / "roff.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", [".so /etc/passwd", "'tis \\n it", "--x-y ` ~ ^", "naïve …"])
def test_a_page_shows_every_text_as_it_is(roff: ModuleType, text: str) -> None:
    need("groff")
    begins_a_line = "x " * (roff.WIDTH // 2) + text
    bodies = (roff.paragraph(begins_a_line), roff.example(text), roff.entry(roff.plain(text), "y"))
    for body in bodies:
        page = "\n".join((roff.heading("t-x", 1, AT_S, "s"), ".SH NAME", body, ""))
        done = run(("groff", "-man", "-Tutf8", "-P-cbou", "-ww"), stdin=page, timeout_s=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert text in done.stdout


def test_pages_are_the_same_again(share: Path, tmp_path: Path) -> None:
    argv = (
        sys.executable,
        str(ROOT / "packaging" / "write_pages.py"),
        str(tmp_path),
        "Ann <a@b.c>",
    )
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(AT_S), "COLUMNS": "40", "TZ": "Asia/Tokyo"}
    assert run(argv, timeout_s=120, env=env).is_ok
    again = tmp_path / "usr" / "share"
    files = {one.relative_to(share) for one in share.rglob("*") if one.is_file()}
    assert files == {one.relative_to(again) for one in again.rglob("*") if one.is_file()}
    assert [one for one in files if (share / one).read_bytes() != (again / one).read_bytes()] == []


def test_debian_has_a_changelog(share: Path) -> None:
    log = (share / "doc" / "bftrainer" / "changelog.gz").read_bytes()
    assert "\n -- Ann <a@b.c>  Fri, 27 Nov 2026 " in gzip.decompress(log).decode()


# What a shell runs to complete the words that it is given; $FILE is ours.
SCRIPTS = {
    "bash --norc --noprofile -c": (
        "bash-completion/completions/bftrainer",
        (
            '. "$FILE"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _bftrainer_completion bftrainer;'
            ' printf "%s\\n" "${COMPREPLY[@]}"'
        ),
    ),
    # Its own functions need a terminal; these print what they are given.
    "zsh -f -c": (
        "zsh/vendor-completions/_bftrainer",
        (
            "compdef() { }; compadd() { print -l -- ${(P)@[-1]} };"
            ' _describe() { local one; for one in "${(@P)3}"; do print -- "${one%%:*}"; done };'
            ' words=("$@"); CURRENT=$#; . "$FILE"; _bftrainer_completion'
        ),
    ),
    "fish --no-config -c": (
        "fish/vendor_completions.d/bftrainer.fish",
        'source $FILE; complete -C "$argv[2..]" | string split -f 1 \\t; true',
    ),
}


@pytest.mark.parametrize("command", SCRIPTS)
def test_a_shell_completes_verbs_options_and_trainers(
    share: Path, tmp_path: Path, command: str
) -> None:
    shell, (file, script) = command.split(), SCRIPTS[command]
    need(shell[0])
    imports, program = tmp_path / "imports", tmp_path / "bftrainer"
    code = "import sys; from bftrainer.cli.main import main; sys.exit(main())"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -X importtime -c "{code}" 2>{imports}\n')
    program.chmod(0o755)
    env = {**os.environ, "FILE": str(share / file), "HOME": str(tmp_path)}
    env |= {"PATH": f"{tmp_path}:{env['PATH']}", "BFTRAINER_STATE_DIR": str(tmp_path)}

    def completed(*words: str) -> set[str]:
        """Complete the last word, fast and in silence."""
        done = run((*shell, script, "-", "bftrainer", *words), timeout_s=60, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        lines = imports.read_text().splitlines()
        assert all(line.startswith("import time:") for line in lines)
        packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
        assert packages & {*HEAVY, "bftrainer"} == {"bftrainer"}
        return set(done.stdout.split())

    assert completed("st") == {"study", "status"}
    assert completed("study", "p") == {"pause", "plan", "plot"}
    assert completed("submit", "--no") == {"--nodes", "--notify"}
    assert completed("help", "exp") == {"explain"}
    assert completed("cancel", "t") == set()  # without a daemon
    memory = MemoryService(tmp_path)
    memory.records = {one: replace(record(), trainer_id=one) for one in ("t1", "t2", "t30")}
    with serving(memory, tmp_path / "daemon.sock"):
        assert completed("cancel", "t") == {"t1", "t2", "t30"}
        assert completed("logs", "t3") == {"t30"}


# Makes what venv makes, and is its interpreter, too.
VENV = """\
#!/bin/sh
[ "$1" = -I ] || exit 9  # else a module in the working directory is run
case "$*" in
"-I -m venv "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
*) mkdir "$(dirname "$0")/../lib"; echo module > "$(dirname "$0")/../lib/module.py" ;;
esac
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose interpreter is ``VENV``."""
    directory = tmp_path / "bundle"
    directory.mkdir()
    shutil.copy(ROOT / "packaging" / "install.sh", directory)
    (directory / "python").write_text(VENV)
    (directory / "python").chmod(0o755)
    return directory


def installs(bundle: Path, target: Path, umask: str = "022") -> Completed:
    words = ("sh", "-c", f'umask {umask}; exec sh "$0" "$1"', str(bundle / "install.sh"))
    return run(
        (*words, str(target)), timeout_s=60, env={**os.environ, "PYTHON": f"{bundle}/python"}
    )


@pytest.mark.parametrize("umask", ["000", "077"])
def test_what_is_installed_is_for_all_to_run_and_for_none_to_change(
    bundle: Path, tmp_path: Path, umask: str
) -> None:
    target = tmp_path / "new" / "place"
    assert installs(bundle, target, umask).is_ok
    modes = {str(p.relative_to(tmp_path)): p.stat().st_mode & 0o7777 for p in target.rglob("*")}
    assert modes == {
        "new/place/bin": 0o755,
        "new/place/bin/python": 0o755,
        "new/place/lib": 0o755,
        "new/place/lib/module.py": 0o644,
    }
    assert (target.stat().st_mode | target.parent.stat().st_mode) & 0o7777 == 0o755


@pytest.mark.parametrize("what", ["link", "open", "above", "foreign"])
def test_a_place_that_others_can_change_is_refused(bundle: Path, tmp_path: Path, what: str) -> None:
    target = tmp_path / "above" / "place"
    target.parent.mkdir()
    if what == "link":
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to(tmp_path / "elsewhere")
    elif what == "above":
        target.parent.chmod(0o777)
    else:
        target.mkdir()
        (target / "planted.pth").write_text("import evil")
        if what == "open":
            (target / "planted.pth").chmod(0o666)
        elif os.geteuid() != 0:
            pytest.skip("only root can plant files of others")
        else:
            os.chown(target / "planted.pth", 65534, 65534)
    done = installs(bundle, target)
    assert done.returncode == 1
    assert "; next: name " in done.stderr
    assert not list(tmp_path.rglob("module.py"))


def test_packages_are_not_left_where_everybody_can_put_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    done = run((str(ROOT / "packaging" / "build.sh"), "deb", str(tmp_path)), timeout_s=60)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    assert f"everybody can write to {tmp_path}; next: chmod o-w" in done.stderr


def test_recipes_are_of_this_release_and_need_what_setup_needs() -> None:
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg")
    needed = {
        canonicalize_name(one.name): Version(next(iter(one.specifier)).version)
        for one in map(Requirement, read["options"]["install_requires"].split())
    }
    place = "packaging/spack/spack_repo/bftrainer/packages/py_bftrainer/package.py"
    spack = (ROOT / place).read_text()
    bounds = re.findall(r'^        depends_on\("py-([\w-]+)@([\d.]+):"\)', spack, re.MULTILINE)
    assert {name: Version(bound) for name, bound in bounds} == needed
    assert f"/bftrainer-{__version__}.tar.gz" in spack.replace('" / "', "/")
    assert f'version("{__version__}",' in spack
    (easybuild,) = (ROOT / "packaging" / "easybuild").iterdir()
    assert easybuild.name == f"bftrainer-{__version__}.eb"
    assert f"\nversion = '{__version__}'\n" in easybuild.read_text()
