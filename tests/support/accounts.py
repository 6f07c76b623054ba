"""Unix users made for a test, and a Python that they can run."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import bftrainer
from bftrainer.batch import process
from tests.support.waiting import wait_for

MADE = ("useradd", "userdel")


def scratch(prefix: str, parent: str = "/tmp") -> Path:
    """Make a directory that other users may pass, and list."""
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    directory.chmod(0o755)
    return directory


@contextlib.contextmanager
def accounts(homes: Path, *names: str, is_system: bool = False) -> Iterator[list[str]]:
    """Make users with homes below a directory, closed to others; at the end they are gone."""
    missing = [name for name in MADE if shutil.which(name, path="/usr/sbin:/sbin") is None]
    if missing:
        pytest.fail(f"{missing} are not installed: apt-get install passwd")
    made: list[str] = []
    try:
        for name in names:
            unique = f"{name}{os.getpid()}"
            home = homes / unique
            kind = ("--system",) if is_system else ()
            _change(
                ("useradd", *kind, "--no-create-home", "--user-group", f"--home-dir={home}", unique)
            )
            made.append(unique)
            home.mkdir(mode=0o700)
            account = pwd.getpwnam(unique)
            os.chown(home, account.pw_uid, account.pw_gid)
        yield made
    finally:
        for name in made:
            _change(("userdel", name))


def _change(argv: tuple[str, ...]) -> None:
    """Change the lists of accounts; somebody else may just do so."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def done() -> bool:
        ran = process.run(argv, timeout_s=30, env=env)
        # Another change of accounts holds the lock, or a process of the user's is about to end.
        assert ran.is_ok or "lock" in ran.stderr or "currently used" in ran.stderr, ran.stderr
        return ran.is_ok

    wait_for(done, what=" ".join(argv))


def python_for_all(directory: Path) -> str:
    """Return an interpreter with everything of ours that every user of this machine can run."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if why := why_closed():
        pytest.skip(why)
    packages = [p for p in site.getsitepackages() if Path(p).is_dir()]
    for base in (sys.executable, f"/usr/bin/python{version}"):
        if Path(base).exists() and not _is_closed(Path(base)):
            break
    else:
        pytest.skip("every Python of this release is closed to other users")
    made = process.run((base, "-m", "venv", "--without-pip", str(directory)), timeout_s=60)
    assert made.is_ok, made.stderr
    lines = [f"import site; site.addsitedir({place!r})" for place in packages]
    own = directory / "lib" / f"python{version}" / "site-packages" / "project.pth"
    own.write_text("\n".join((*lines, sysconfig.get_paths()["purelib"])) + "\n")
    for library in Path(sys.prefix, "lib").iterdir():  # mpi4py looks for MPI there
        with contextlib.suppress(FileExistsError):
            (directory / "lib" / library.name).symlink_to(library)
    return str(directory / "bin" / "python")


def why_closed() -> str:
    """Return why other users cannot run what is tested, in one line; "": they can."""
    for needed in (bftrainer.__file__, *filter(os.path.isdir, site.getsitepackages())):
        if _is_closed(Path(needed)):
            return f"closed to other users: {needed}"
    return ""


def _is_closed(path: Path) -> bool:
    """Whether other users cannot come to it."""
    return any(place.stat().st_mode & 0o005 != 0o005 for place in path.resolve().parents)


def as_user(name: str, *argv: str) -> tuple[str, ...]:
    """Return the command line that runs another as a user."""
    account = pwd.getpwnam(name)
    return (
        *("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups"),
        *("--", *argv),
    )
