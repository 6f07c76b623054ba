"""A container that a trainer's programs run in: image, mounts, and the line that starts it. Pure.

On a node the line ends a trainer's preamble: after the user's own lines, bash is replaced by the
entry (``bftrainer.batch.containers.entry``), which chooses the runtime by what is there and starts
the program in the image. So a container is part of what a warm template is kept by, like a
preamble. Used by ``submit`` and by agents.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Final

AUTO: Final = "auto"
# By the names of their programs as users know them, but Charliecloud's is ch-run.
RUNTIMES: Final = ("apptainer", "singularity", "podman", "charliecloud", "enroot", "bwrap")
REGISTRY: Final = "docker://"
SCHEMES: Final = (REGISTRY, "oras://", "library://", "shub://")
MOST_MOUNTS: Final = 64
READ_ONLY: Final = "ro"
NOT_STARTED = "BFT-1081"  # no runtime on this machine can start the image
ENDED_EARLY = "BFT-1082"  # the runtime ended before the program in the image had begun
MARK: Final = "bftrainer: container "  # begins the line that the entry writes before it starts one
# An image has directories of its own there; one of the host in its place would break it.
SYSTEM_DIRECTORIES: Final = (
    *("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run"),
    *("/sbin", "/sys", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local"),
    *("/usr/local/bin", "/usr/local/lib", "/usr/local/sbin", "/usr/sbin", "/opt", "/var"),
)
_SEVERAL: Final = ("directories", "made", "variables")  # fields of an order
_OPTION = re.compile(r"r[ow]\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """A file or directory of the host that is seen in a container."""

    source: str  # absolute, on the host
    target: str  # absolute, in the container
    is_read_only: bool = False

    @property
    def words(self) -> str:
        """The mount as most runtimes take it: SRC:DST[:ro]."""
        option = f":{READ_ONLY}" if self.is_read_only else ""
        return f"{self.source}:{self.target}{option}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOrder:
    """The entry's orders, in one word of its command line: no secret is in it."""

    image: str  # an absolute path, or with one of SCHEMES
    runtime: str = AUTO
    mounts: str = ""  # of the user and the site, as for --container-mounts
    directories: tuple[str, ...] = ()  # of the host, at the same place unless they are the system's
    made: tuple[str, ...] = ()  # likewise, and made if they do not exist yet
    variables: tuple[str, ...] = ()  # names of those that win over the image's own
    workdir: str = "/"

    def encoded(self) -> str:
        """Return it as one word."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def decoded(cls, word: str) -> ContainerOrder:
        """Return what ``encoded`` made; raise ValueError, TypeError or KeyError if it is not."""
        body: dict[str, Any] = json.loads(word)
        for name in _SEVERAL:
            body[name] = tuple(map(str, body[name]))
        return cls(**body)


def mounts_of(text: str) -> tuple[BindMount, ...]:
    """Return the mounts of SRC[:DST[:ro]],...; the last of those with the same target counts.

    Raises:
        ValueError: one is malformed, with the reason.
    """
    mounts: dict[str, BindMount] = {}
    for word in text.split(","):
        if not word.strip():
            continue
        source, *further = word.strip().split(":")
        option = ""
        if further and _OPTION.match(further[-1]):
            option = further.pop()
        target = further[0] if further else source
        if len(further) > 1:
            raise ValueError(f"{word[:100]!r} has too many parts")
        for place in (source, target):
            if not place.startswith("/"):
                raise ValueError(f"{place[:100]!r} in {word[:100]!r} is not an absolute path")
        if PurePosixPath(target) == PurePosixPath("/"):
            raise ValueError(f"{word[:100]!r} would hide the whole image")
        mounts[target] = BindMount(source=source, target=target, is_read_only=option == READ_ONLY)
    if len(mounts) > MOST_MOUNTS:
        raise ValueError(f"there are {len(mounts)} mounts, and at most {MOST_MOUNTS} are taken")
    return tuple(mounts.values())


def check_mounts(text: str) -> str:
    """Return mounts as they are; raise ValueError if ``mounts_of`` cannot read them."""
    mounts_of(text)
    return text


def check_runtime(name: str) -> str:
    """Return the name of a runtime as it is; raise ValueError if there is none."""
    if name not in (AUTO, *RUNTIMES):
        raise ValueError(f"it is none of {AUTO}, {', '.join(RUNTIMES)}")
    return name


def text_of(mounts: Iterable[BindMount]) -> str:
    """Return mounts as ``mounts_of`` reads them."""
    return ",".join(mount.words for mount in mounts)


def outside(mounts: Iterable[BindMount], places: Sequence[str]) -> list[BindMount]:
    """Return the mounts whose source is neither one of these places nor below one."""
    roots = list(map(PurePosixPath, places))
    elsewhere: list[BindMount] = []
    for mount in mounts:
        source = PurePosixPath(mount.source)
        is_below_root = any(map(source.is_relative_to, roots))
        if ".." in source.parts or not is_below_root:
            elsewhere.append(mount)
    return elsewhere


def image_fault(image: str) -> str:
    """Say what is wrong with an image as it is kept; "": nothing."""
    if image.startswith(SCHEMES):
        name = image.partition("://")[2]
        if not name or name.startswith("-"):
            return f"{image[:100]!r} names no image"
        return ""
    if not image.startswith("/"):
        return f"{image[:100]!r} is neither an absolute path nor begins with {REGISTRY}"
    return ""


def line_of(order: ContainerOrder, entry: Sequence[str]) -> str:
    """Return the shell line that replaces bash by ``entry``, which starts ``"$@"`` in the image."""
    return f'exec {shlex.join([*entry, order.encoded()])} "$@"\n'


def is_of_the_system(directory: str) -> bool:
    """Return whether an image has such a directory of its own."""
    return str(PurePosixPath(directory)) in SYSTEM_DIRECTORIES


def covering(mounts: Iterable[BindMount]) -> tuple[BindMount, ...]:
    """Return the mounts in the order in which they are made, without what others show already.

    A mount below another one is left out if both show the same place with the same right. Of two
    with the same target the later one counts.
    """
    by_target = {mount.target: mount for mount in mounts}
    mounts_to_make: list[BindMount] = []
    for target in sorted(by_target, key=lambda path: PurePosixPath(path).parts):
        mount = by_target[target]
        above = [upper for upper in mounts_to_make if _is_below(target, upper.target)]
        if not above or not _shows(above[-1], mount):
            mounts_to_make.append(mount)
    return tuple(mounts_to_make)


def _is_below(target: str, other: str) -> bool:
    return PurePosixPath(target).is_relative_to(other)


def _shows(above: BindMount, mount: BindMount) -> bool:
    """Return whether the nearest mount above shows the same as this one."""
    inner = PurePosixPath(mount.target).relative_to(above.target)
    is_same = PurePosixPath(above.source) / inner == PurePosixPath(mount.source)
    return is_same and above.is_read_only == mount.is_read_only
