"""packaging/: both packages are built and used, and the Ansible role sets up a service."""

from __future__ import annotations

import json
import os
import shutil
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import bftrainer
from bftrainer.batch import process
from slurm_plugins.site_files import usual_service
from tests.integration.slurm_fixtures import need_slurm
from tests.support import slurm_site
from tests.support.machine import ROOT, Machine

pytestmark = pytest.mark.long
INTERPRETER = "/usr/bin/python3"
BUILD_S = 900.0
ROLE = ROOT / "packaging" / "ansible" / "roles" / "bftrainer"
MANUALS = (
    *("man/man1/bftrainer.1.gz", "man/man1/bftrainer-study.1.gz", "man/man5/bftrainer-policy.5.gz"),
    *("man/man8/bftrainer-daemon.8.gz", "man/man8/bftrainer-slurm-hook.8.gz"),
    *("bash-completion/completions/bftrainer", "zsh/vendor-completions/_bftrainer"),
    "fish/vendor_completions.d/bftrainer.fish",
)
PLAYBOOK = """\
- hosts: all
  roles:
    - role: {role}
      bftrainer_package: {package}
      bftrainer_serves: true
"""


def runs(*argv: str | Path, **environment: str) -> str:
    """Run what must succeed; its output."""
    env = {**os.environ, **environment}
    done = process.run([str(word) for word in argv], timeout_s=BUILD_S, env=env, cwd=ROOT)
    assert done.is_ok, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def need(*programs: str) -> None:
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/install_system.sh packages)")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, in a directory."""
    need("dpkg-deb", "rpmbuild", INTERPRETER)
    out = tmp_path_factory.mktemp("dist")
    argv = ("nice", str(ROOT / "packaging" / "build.sh"), "both", str(out))
    env = {**os.environ, "PIP": f"{sys.executable} -m pip"}
    done = process.run(argv, timeout_s=BUILD_S, env=env, cwd=ROOT)
    if "No matching distribution found" in done.stderr:  # so says pip without a network, too
        pytest.skip(f"the dependencies cannot be downloaded: {done.stderr[-300:]}")
    assert done.is_ok, done.stdout + done.stderr
    return out


def one(directory: Path, pattern: str) -> Path:
    (found,) = directory.rglob(pattern)
    return found


def test_the_debian_package_works_where_it_is_unpacked(packages: Path, tmp_path: Path) -> None:
    package = one(packages, "*.deb")
    runs("dpkg-deb", "--extract", package, tmp_path)
    installed = (tmp_path / "opt/bftrainer/bin/python", "-I", "-m", "bftrainer")
    assert runs(*installed, "--version") == f"bftrainer {bftrainer.__version__}\n"
    assert "\nnext: " in runs(*installed, "help", "BFT-1310")
    for file in usual_service():
        path = tmp_path / "usr/lib" / file.path.removeprefix("/etc/")
        assert path.read_text() == file.text
    for program in ("bftrainer", "bftrainer-slurm-hook"):
        target = (tmp_path / "usr/bin" / program).readlink()
        assert (tmp_path / target.relative_to("/")).stat().st_mode & 0o111
    share = tmp_path / "usr/share"
    for name in ("doc/bftrainer/howto/slurm-site.md", "bftrainer/grafana/bftrainer-site.json",
                 "bftrainer/prometheus/bftrainer.rules.yml"):  # fmt: skip
        assert (share / name).exists()


def test_both_packages_contain_the_same(packages: Path) -> None:
    listed = runs("dpkg-deb", "--contents", one(packages, "*.deb")).splitlines()
    lines = [line.split(" -> ")[0].split(maxsplit=5) for line in listed]
    deb = {words[5].removeprefix(".") for words in lines if not words[0].startswith("d")}
    names = runs("rpm", "--query", "--list", "--package", one(packages, "*.rpm")).splitlines()
    assert len(deb) > 1000
    assert {f"/usr/share/{manual}" for manual in MANUALS} <= deb <= set(names)
    requires = runs("rpm", "--query", "--requires", "--package", one(packages, "*.rpm"))
    assert str(Path(INTERPRETER).resolve()) in requires.splitlines()


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its programs, of an environment of the test."""
    directory = tmp_path_factory.mktemp("ansible")
    venv.create(directory, with_pip=True)
    pip = (str(directory / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    done = process.run((*pip, "ansible-lint"), timeout_s=BUILD_S)
    if not done.is_ok:
        pytest.skip(f"ansible-lint cannot be installed: {done.stderr[-300:]}")
    return directory / "bin"


def test_the_role_satisfies_ansible_lint(ansible: Path) -> None:
    path = f"{ansible}:{os.environ['PATH']}"
    argv = (ansible / "ansible-lint", "--offline", "--strict", "--profile", "production", ROLE)
    runs(*argv, PATH=path)


@pytest.fixture
def machine(packages: Path, ansible: Path) -> Iterator[Machine]:
    """With Slurm; packages and Ansible were there before it was booted."""
    del packages, ansible
    need_slurm()
    with Machine.boot() as booted:
        slurm_site.prepare(booted)
        booted.does("rm /usr/local/bin/bftrainer* /opt/bftrainer")
        yield booted


@pytest.mark.slurm
def test_the_role_sets_up_a_service_that_runs(
    machine: Machine, packages: Path, ansible: Path
) -> None:
    package = one(packages, "*.deb")
    # The task that installs it needs python3-apt, which not every host has.
    machine.does(f"dpkg --install {package}")
    machine.write("/root/site.yml", PLAYBOOK.format(role=ROLE, package=package))
    play = f"{ansible}/ansible-playbook -i localhost, -c local site.yml"
    variables = f"-e ansible_python_interpreter={INTERPRETER}"
    machine.does(
        "groupadd --gid 899 bftrainer && useradd --uid 899 --gid 899 --system bftrainer && "
        f"{play} {variables} --start-at-task 'Ask the site'"
    )
    assert machine.does("systemctl is-active bftrainer") == "active\n"
    assert machine.does("systemctl is-enabled bftrainer") == "enabled\n"
    status = json.loads(machine.does("bftrainer status --json"))
    assert (status["batch_system"], status["incarnation"]) == ("slurm", 1)
    again = machine.does(f"{play} {variables} --start-at-task 'Ask the site'")
    assert "changed=0" in again
    assert machine.does("systemctl show bftrainer --property=NRestarts --value") == "0\n"
    machine.does("dpkg --remove bftrainer")
    assert machine.run("systemctl is-active bftrainer").stdout == "inactive\n"
