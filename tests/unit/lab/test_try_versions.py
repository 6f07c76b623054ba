"""The table of Python and torch releases, and the stand-ins for libraries that are not there."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cuda_stand_ins import write_missing
from try_versions import BEGIN, END, PAGE, RESULTS, table

CELLS: dict[str, dict[str, Any]] = {
    "3.12 2.4": {"date": "2026-11-30", "part": [], "why_not": "there is no Python 3.12"},
    "3.10 2.13": {
        "date": "2026-11-30",
        "part": ["test_rescale.py"],
        "torch": "2.13.0+cu130",
        "stand_ins": ["libcudnn.so.9"],
        "passed": 9,
        "skipped": 1,
        "failed": ["test_more"],
        "seconds": 41.2,
    },
}


def test_a_cell_says_what_ran_or_why_not() -> None:
    _, _, ran, not_run = table(CELLS).splitlines()
    how = "`test_rescale.py` in 41 s, 2026-11-30, 1 stand-ins"
    assert ran == f"| 3.10 | 2.13.0+cu130 | {how} | 9 passed, 1 skipped; failed: `test_more` |"
    assert not_run == "| 3.12 | 2.4 | not run | there is no Python 3.12 |"


def test_the_page_has_the_table_of_the_results() -> None:
    _, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    assert rest.partition(END)[0] == table(json.loads(RESULTS.read_text("utf-8")))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")
def test_a_library_loads_whose_needs_are_missing(tmp_path: Path) -> None:
    """Bound at once, as torch's are: every function must be there, in its version."""
    (tmp_path / "torch").mkdir()
    needs, needed = tmp_path / "needs.c", tmp_path / "needed.c"
    needs.write_text("int one(void); int two(void); int f(void) { return one() + two(); }\n")
    needed.write_text("int one(void) { return 1; }\nint two(void) { return 2; }\n")
    (tmp_path / "map").write_text("NEEDED_1 { global: one; };\n")
    gone, library = tmp_path / "libneeded.so.3", tmp_path / "torch" / "libtorch.so"
    shared = ["gcc", "-shared", "-fPIC", "-Wl,-z,now"]
    script = f"-Wl,--version-script={tmp_path / 'map'}"
    naming = [f"-Wl,-soname,{gone.name}", script]
    subprocess.run([*shared, *naming, "-o", gone, needed], check=True)
    subprocess.run([*shared, "-o", library, needs, gone], check=True)
    gone.unlink()
    with pytest.raises(OSError, match=r"libneeded\.so\.3"):
        ctypes.CDLL(str(library))
    made = tmp_path / "made"
    assert write_missing(tmp_path, made) == [gone.name]
    ctypes.CDLL(str(made / gone.name))  # then the loader knows its name
    assert ctypes.CDLL(str(library)).f
