"""packaging/: what build.sh makes is installed and used; the Ansible role sets up a service."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import bftrainer
from bftrainer.batch import process
from bftrainer.cli.pages import pages
from slurm_plugins.site_files import usual_service
from tests.integration.slurm_fixtures import need_slurm
from tests.support import slurm_site
from tests.support.machine import ROOT, Machine
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long
INTERPRETER = "/usr/bin/python3"
BUILD_S = 900.0
VERSION = f"bftrainer {bftrainer.__version__}\n"
JOURNAL, POLICY = "/var/lib/bftrainer/journal.db", "/etc/bftrainer/policy.yaml"
ROLE = ROOT / "packaging" / "ansible" / "roles" / "bftrainer"
MANUALS = (
    *("man/man1/bftrainer.1.gz", "man/man1/bftrainer-study.1.gz", "man/man5/bftrainer-policy.5.gz"),
    *("man/man8/bftrainer-daemon.8.gz", "man/man8/bftrainer-slurm-hook.8.gz"),
    *("bash-completion/completions/bftrainer", "zsh/vendor-completions/_bftrainer"),
    "fish/vendor_completions.d/bftrainer.fish",
)
# What rpm(8) asks for and finds in no database where Debian's packages are.
HOST_SPEC = """\
Name: host
Version: 1
Release: 1
Summary: what this host has
License: none
Provides: /bin/sh, {python}, libstdc++.so.6()(64bit), libz.so.1()(64bit)
%description
Nothing.
%files
"""
# Their edit of the policy, so that there is less to wait for.
THEIRS = "requests_per_minute_with_hook: 1000"
# As docs/howto/slurm-site.md says.
SETS_UP = f"""\
set -e
bftrainer site init --write
cd bftrainer-site
install -m 644 tmpfiles.bftrainer.conf /etc/tmpfiles.d/bftrainer.conf
systemd-sysusers
systemd-tmpfiles --create bftrainer.conf
cat slurm.conf.bftrainer >> /etc/slurm/slurm.conf
bftrainer-slurm-hook --file /run/bftrainer-hook/told --group bftrainer --directory /etc/slurm
systemctl restart slurmctld
install -D -m 644 policy.yaml {POLICY}
printf "%s\\n" "poll_interval_with_hook_s: 1" "{THEIRS}" >> {POLICY}
systemctl enable --now bftrainer
"""
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


def build(
    tree: Path, out: Path, kind: str = "all", cwd: Path | None = None, **environment: str
) -> Path:
    """Build everything, or one kind, from a tree; where it lies."""
    env = {**os.environ, **environment}
    argv = ("nice", str(tree / "packaging" / "build.sh"), kind, str(out))
    done = process.run(argv, timeout_s=BUILD_S, env=env, cwd=cwd or tree)
    if "No matching distribution found" in done.stderr:  # so says pip without a network, too
        pytest.skip(f"the dependencies cannot be downloaded: {done.stderr[-300:]}")
    assert done.is_ok, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, in a directory."""
    need("dpkg-deb", "rpmbuild", INTERPRETER)
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def one(directory: Path, pattern: str) -> Path:
    (found,) = directory.rglob(pattern)
    return found


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree as an archive leaves it: no git, other dates, closed to others."""
    tree = tmp_path_factory.mktemp("elsewhere") / "copy"
    names = runs("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in names:
        if not name.startswith(("tests/", "scripts/")) and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
            (tree / name).chmod(0o700 if os.access(ROOT / name, os.X_OK) else 0o660)
            os.utime(tree / name, (1e9, 1e9))
    return tree


COMMIT = ("git", "log", "-1", "--format=%ct")


def opens_pages(*program: str | Path) -> None:
    """Check that an installed program finds every page that messages and lists name."""
    assert set(runs(*program, "help", "--pages").splitlines()) == set(pages())
    for name, title in (
        ("slurm-site", "Install on a Slurm site\n====="),
        ("docs/howto/operate.md", "Operate a daemon\n====="),
        ("policies", "Policies\n====="),
        ("las", "las: least attained service first\n====="),
    ):
        assert runs(*program, "help", name).startswith(title), name
    listed = json.loads(runs(*program, "policy", "list", "--json"))["policies"]
    assert {(row["package"], row["problem"]) for row in listed} == {("bftrainer", None)}


def test_another_tree_of_the_commit_gives_the_same_bytes(
    packages: Path, elsewhere: Path, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        build(elsewhere, tmp_path, SOURCE_DATE_EPOCH=runs(*COMMIT).strip(), TZ="Asia/Tokyo")
    finally:
        os.umask(before)
    made = {file.relative_to(packages) for file in packages.rglob("*") if file.is_file()}
    assert {file.suffix for file in made} == {".gz", ".whl", ".tar", ".deb", ".rpm"}
    assert [
        one for one in made if (packages / one).read_bytes() != (tmp_path / one).read_bytes()
    ] == []


def test_a_hostile_umask_and_hostile_directories_change_no_byte(
    packages: Path, tmp_path: Path
) -> None:
    """Modules and links that others planted, a build directory that gives its group away."""
    out, here, work = (tmp_path / name for name in ("out", "here", "work"))
    for directory in (out, here, work):
        directory.mkdir()
    out.chmod(0o1777)
    work.chmod(0o2777)
    package = one(packages, "*.deb").name
    (out / package).symlink_to(tmp_path / "precious")
    for name in ("venv", "pip", "build", "compileall", "sysconfig", "ensurepip"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    before = os.umask(0)
    try:
        build(ROOT, out, "deb", here, TMPDIR=str(work), PYTHONPATH=str(here))
    finally:
        os.umask(before)
    assert not (out / package).is_symlink()
    assert (out / package).read_bytes() == (packages / package).read_bytes()
    assert (out / package).stat().st_mode & 0o777 == 0o644
    assert not (tmp_path / "precious").exists()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("umask", ["000", "077"])
def test_what_is_unpacked_is_for_all_to_run_and_for_none_to_change(
    packages: Path, tmp_path: Path, umask: str
) -> None:
    """There are no conffiles: what holds secrets is written by the administrator."""
    if os.geteuid() != 0:
        pytest.skip("only root can unpack files of root")
    (tmp_path / "admin" / "updates").mkdir(parents=True)
    (tmp_path / "admin" / "status").touch()
    (tmp_path / "root").mkdir(mode=0o755)
    dpkg = f"dpkg --admindir={tmp_path}/admin --instdir={tmp_path}/root --log=/dev/null --unpack"
    runs("sh", "-c", f"umask {umask}; {dpkg} {one(packages, '*.deb')}")
    for path in (tmp_path / "root").rglob("*"):
        told = path.lstat()
        assert (told.st_uid, told.st_gid) == (0, 0), path
        if not path.is_symlink():
            assert told.st_mode & 0o7777 in {0o644, 0o755}, (path, oct(told.st_mode))
    assert "conffiles" not in runs("dpkg-deb", "--info", one(packages, "*.deb"))


def test_no_file_of_the_rpm_can_be_changed_by_others(packages: Path) -> None:
    asked = ("rpm", "--query", "--package", "--queryformat")
    shown = r"[%{FILEMODES:octal} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]"
    for line in runs(*asked, shown, one(packages, "*.rpm")).splitlines():
        mode, user, group, name = line.split(maxsplit=3)
        assert (user, group) == ("root", "root"), name
        assert int(mode, 8) & 0o170000 == 0o120000 or int(mode, 8) & 0o7777 in {0o644, 0o755}, line


def test_the_wheel_of_the_tree_is_that_of_the_sdist(
    packages: Path, elsewhere: Path, tmp_path: Path
) -> None:
    argv = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path)
    runs("chmod", "-R", "u=rwX,go=rX", elsewhere)
    runs(*argv, elsewhere, SOURCE_DATE_EPOCH=runs(*COMMIT).strip())
    with (
        zipfile.ZipFile(one(packages, "*.whl")) as ours,
        zipfile.ZipFile(one(tmp_path, "*.whl")) as theirs,
    ):
        entries = [
            [(i.filename, i.CRC, i.date_time, i.external_attr) for i in z.infolist()]
            for z in (ours, theirs)
        ]
    assert entries[0] == entries[1]


def test_the_wheel_needs_no_compiler(packages: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("cc", "gcc", "c++", "g++", "clang", "gfortran", "cargo", "cmake", "make"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/compiled\nexit 1\n")
        (programs / name).chmod(0o755)
    python = tmp_path / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:")
    runs(*pip, "-c", ROOT / "constraints.txt", one(packages, "*.whl"), PATH=f"{programs}")
    assert not (tmp_path / "compiled").exists()
    assert runs(python, "-I", "-m", "bftrainer", "--version") == VERSION
    opens_pages(python, "-I", "-m", "bftrainer")


def test_the_bundle_installs_without_a_network(packages: Path, tmp_path: Path) -> None:
    runs("tar", "-C", tmp_path, "-xf", one(packages, "*.tar"))
    (bundle,) = tmp_path.iterdir()
    assert (bundle / "docs" / "tutorial.md").exists()
    isolated = (
        ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--net", "--map-root-user")
    )
    runs(*isolated, bundle / "install.sh", tmp_path / "env", PYTHON=INTERPRETER)
    program = (*isolated, tmp_path / "env" / "bin" / "bftrainer")
    assert runs(*program, "--version") == VERSION
    assert "\nnext: " in runs(*program, "help", "BFT-1310")
    opens_pages(*program)
    changed = one(bundle / "wheels", "click-*.whl")
    changed.write_bytes(changed.read_bytes() + b"\0")
    argv = [str(bundle / "install.sh"), str(tmp_path / "other")]
    refused = process.run(argv, timeout_s=BUILD_S, env={**os.environ, "PYTHON": INTERPRETER})
    assert "DO NOT MATCH THE HASHES" in refused.stderr


def test_lintian_finds_nothing_that_is_not_meant(packages: Path) -> None:
    need("lintian")
    argv = ("lintian", "--allow-root", "--fail-on", "error,warning", one(packages, "*.deb"))
    assert runs(*argv) == ""


def test_the_debian_package_works_where_it_is_unpacked(packages: Path, tmp_path: Path) -> None:
    package = one(packages, "*.deb")
    runs("dpkg-deb", "--extract", package, tmp_path)
    installed = (tmp_path / "opt/bftrainer/bin/python", "-I", "-m", "bftrainer")
    assert runs(*installed, "--version") == VERSION
    assert "\nnext: " in runs(*installed, "help", "BFT-1310")
    opens_pages(*installed)
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
    overrides = {"/usr/share/lintian/overrides/bftrainer"}
    assert {f"/usr/share/{manual}" for manual in MANUALS} <= deb <= {*names, *overrides}
    requires = runs("rpm", "--query", "--requires", "--package", one(packages, "*.rpm"))
    assert str(Path(INTERPRETER).resolve()) in requires.splitlines()


def tools(directory: Path, *names: str) -> Path:
    """Programs from PyPI, in an environment of the test."""
    venv.create(directory, with_pip=True)
    pip = (str(directory / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    done = process.run((*pip, *names), timeout_s=BUILD_S)
    if not done.is_ok:
        pytest.skip(f"{names} cannot be installed: {done.stderr[-300:]}")
    return directory / "bin"


def test_easybuild_installs_the_sdist(packages: Path, tmp_path: Path) -> None:
    need("modulecmd")
    programs = tools(tmp_path / "tools", "easybuild", "pycodestyle")
    recipe = ROOT / "packaging" / "easybuild" / f"bftrainer-{bftrainer.__version__}.eb"
    settings = {"ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES": "1", "PREFIX": f"{tmp_path}/eb",
                "MODULES_TOOL": "EnvironmentModules", "MODULE_SYNTAX": "Tcl",
                "SOURCEPATH": str(packages), "TMPDIR": str(tmp_path)}  # fmt: skip
    env = {f"EASYBUILD_{name}": value for name, value in settings.items()}
    env |= {"PATH": f"/usr/bin:/bin:{programs}", "HOME": str(tmp_path)}
    # The sanity checks of the recipe start our programs, and so do we.
    script = (
        f"set -e; . /etc/profile.d/modules.sh; eb --check-style {recipe} >&2; eb {recipe} >&2; "
        f"module use {tmp_path}/eb/modules/all; module load bftrainer; bftrainer --version"
    )
    assert runs("bash", "-c", script, **env) == VERSION


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its programs."""
    return tools(tmp_path_factory.mktemp("ansible"), "ansible-lint")


def test_the_role_satisfies_ansible_lint(ansible: Path) -> None:
    path = f"{ansible}:{os.environ['PATH']}"
    argv = (ansible / "ansible-lint", "--offline", "--strict", "--profile", "production", ROLE)
    runs(*argv, PATH=path)


@pytest.fixture
def machine(packages: Path) -> Iterator[Machine]:
    """With Slurm; packages and Ansible were there before it was booted."""
    del packages
    need_slurm()
    with Machine.boot(runs_checkout=False) as booted:
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


def older(package: Path, directory: Path) -> Path:
    """The same Debian package with a lower version."""
    runs("dpkg-deb", "--raw-extract", package, directory / "older")
    control = directory / "older" / "DEBIAN" / "control"
    control.write_text(re.sub(r"\nVersion: .*", "\nVersion: 0.0.9", control.read_text()))
    runs("dpkg-deb", "-Znone", "--build", directory / "older", directory / "older.deb")
    return directory / "older.deb"


@pytest.mark.slurm
def test_upgrade_removal_and_purge_leave_trainers_journal_and_policy(
    packages: Path, tmp_path: Path, machine: Machine
) -> None:
    was, is_now = older(one(packages, "*.deb"), tmp_path), one(packages, "*.deb")
    machine.does(f"dpkg --install {was}")
    machine.does(SETS_UP)
    submit = "bftrainer submit --runtime command --chdir /var/tmp -- /bin/sleep 999"
    machine.does(f"runuser -u bftrainer -- {submit}")
    ask = "squeue --noheader --partition bf --states R --format %i"

    def pilot() -> str:
        return machine.run(ask).stdout.strip()  # slurmctld may still be starting

    job = wait_for(pilot, timeout_s=60, what="the trainer has a node")

    def status() -> tuple[int, str]:
        said = json.loads(machine.does("bftrainer status --json"))
        return said["incarnation"], said["trainers"][0]["record"]["state"]

    wait_for(lambda: status() == (1, "running"), timeout_s=60, what="the trainer runs")
    pid = machine.does("systemctl show bftrainer --property=MainPID --value")
    assert "next: systemctl restart bftrainer\n" in machine.does(f"dpkg --install {is_now}")
    assert machine.does("systemctl show bftrainer --property=MainPID --value") == pid
    assert status() == (1, "running")
    assert machine.does("dpkg --verify bftrainer") == ""
    machine.does("systemctl restart bftrainer")
    wait_for(lambda: status() == (2, "running"), timeout_s=60, what="the trainer is taken over")
    machine.does("dpkg --remove bftrainer")
    for question in ("is-active", "is-enabled"):
        assert not machine.run(f"systemctl --quiet {question} bftrainer").is_ok
    assert pilot() == job
    machine.does("test ! -e /opt/bftrainer")
    purged = machine.does("dpkg --purge bftrainer")
    assert all(f"{place} is kept" in purged for place in ("/etc/bftrainer", "/var/lib/bftrainer"))
    assert machine.does(f"tail -n 1 {POLICY} && ls {JOURNAL}") == f"{THEIRS}\n{JOURNAL}\n"


def test_the_rpm_is_installed_verified_upgraded_and_erased(packages: Path, tmp_path: Path) -> None:
    stage, specs = tmp_path / "stage", tmp_path / "specs"
    runs("dpkg-deb", "--extract", one(packages, "*.deb"), stage)
    shutil.rmtree(stage / "usr/share/lintian")
    specs.mkdir()
    python = Path(INTERPRETER).resolve()
    (specs / "host.spec").write_text(HOST_SPEC.format(python=python))
    macros = {"_topdir": tmp_path / "rpm", "_rpmdir": tmp_path / "old", "stage": stage,
              "bft_version": "0.0.9", "bft_python": python}  # fmt: skip
    rpmbuild = ("rpmbuild", "-bb", "--quiet", *(f"-D{n} {value}" for n, value in macros.items()))
    for spec in (ROOT / "packaging/rpm/bftrainer.spec", specs / "host.spec"):
        runs(*rpmbuild, spec)
    was, is_now = one(tmp_path / "old", "bftrainer-*.rpm"), one(packages, "*.rpm")
    with Machine.boot(runs_checkout=False) as machine:
        machine.does("mkdir -p /var/lib/rpm && rpm --initdb")
        rpm = "rpm --force-debian"
        lacks = machine.run(f"{rpm} --install {is_now}").stderr
        assert all(need in lacks for need in (str(python), "libstdc++.so.6", "libz.so.1"))
        machine.does(f"{rpm} --install {one(tmp_path / 'old', 'host-*.rpm')}")
        machine.does(f"{rpm} --install {was}")
        machine.does("systemctl enable bftrainer")
        assert machine.does("rpm --query bftrainer").startswith("bftrainer-0.0.9-")
        machine.does(f"{rpm} --upgrade {is_now}")
        assert machine.does("bftrainer --version") == VERSION
        assert (
            machine.does("rpm --verify bftrainer && systemctl is-enabled bftrainer") == "enabled\n"
        )
        machine.does(f"{rpm} --erase bftrainer")
        enabled = "/etc/systemd/system/multi-user.target.wants/bftrainer.service"
        assert machine.run(f"ls -d /opt/bftrainer /usr/bin/bftrainer {enabled}").stdout == ""
