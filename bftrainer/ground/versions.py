"""The releases of Python and torch with which ``bftrainer.elastic`` runs, and the comparison.

The interpreter that is to be judged reads this file, too, and it may be any: Python 3.6 must be
able to. Run by path it prints the releases that are there (``there``), without importing torch.
"""

import importlib.util
import re
import sys
from pathlib import Path

LEAST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)  # the newest ones were tested; newer ones may run
LEAST_TORCH, NEWEST_TORCH = (2, 4), (2, 14)
LEAST_TORCH_OF_SHARDS = (2, 9)  # FSDPModule.set_custom_reduce_scatter
# The first statements of a program for an unknown Python, under which torch may not even import.
TELL_PYTHON = (
    "import sys; sys.stdout.write('bft-python %d.%d.%d\\n' % sys.version_info[:3]);"
    " sys.stdout.flush(); "
)
TELL_TORCH = "import torch; sys.stdout.write('bft-torch %s\\n' % torch.__version__); "
_PRINTED_PYTHON = re.compile(r"^bft-python (\S+)$", re.MULTILINE)
_PRINTED_TORCH = re.compile(r"^bft-torch (\S+)$", re.MULTILINE)
_RELEASE = re.compile(r"(\d+)\.(\d+)")
_VERSION_LINE = re.compile(r"^__version__[\s:=\w]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def release_of(version: str) -> "tuple[int, int] | None":
    """Return major and minor number of a version; None if it has none.

    An alpha or a vendor's build (``2.10.0a0+git1f``, ``2.8.0+rocm6.4``) counts as its release.
    """
    match = _RELEASE.match(version.strip())
    if match is None:
        return None
    return int(match.group(1)), int(match.group(2))


def told(output: str) -> "tuple[str, str]":
    """Return the releases of Python and torch that such a program has printed; "": it has not."""
    return _first_group(_PRINTED_PYTHON, output), _first_group(_PRINTED_TORCH, output)


def _first_group(pattern: "re.Pattern[str]", text: str) -> str:
    match = pattern.search(text)
    return "" if match is None else match.group(1)


def too_old(python: str, torch: str = "") -> str:
    """Return which of these releases is older than a trainer can have; "": none.

    A release that cannot be read, or that is newer than all that were tested, is accepted.
    """
    release = release_of(python)
    if release is not None and release < LEAST_PYTHON:
        return f"Python {python[:60]}"
    release = release_of(torch)
    if release is not None and release < LEAST_TORCH:
        return f"torch {torch[:60]}"
    return ""


def dotted(release: "tuple[int, int]") -> str:
    """Return a release as text."""
    return "{}.{}".format(*release)


def supported() -> str:
    """Return the range in words."""
    python = f"Python {dotted(LEAST_PYTHON)} to {dotted(NEWEST_PYTHON)}"
    return f"{python} with torch {dotted(LEAST_TORCH)} to {dotted(NEWEST_TORCH)}, or newer"


def refusal(python: str, torch: str = "") -> "dict[str, str]":
    """Return code, cause and next step for who runs this interpreter; {}: it is not too old."""
    release = too_old(python, torch)
    if not release:
        return {}
    return {
        "code": "BFT-1006",
        "cause": f"The interpreter {sys.executable} has {release}; a trainer needs {supported()}.",
        "next_step": "Name a newer one: submit --interpreter PATH.",
    }


def there() -> "tuple[str, str]":
    """Return the releases of this Python and of its torch, which is not imported; "": not known."""
    return "{}.{}.{}".format(*sys.version_info[:3]), _torch_there()


def _torch_there() -> str:
    try:
        # What an import would take, be it a stray torch.py.
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            return ""
        text = (Path(next(iter(spec.submodule_search_locations))) / "version.py").read_bytes()
    except (ImportError, OSError, ValueError):
        return ""
    return _first_group(_VERSION_LINE, text.decode("utf-8", "replace"))


if __name__ == "__main__":
    sys.path[:1] = []  # our own directory
    sys.stdout.write("\n".join(there()) + "\n")
