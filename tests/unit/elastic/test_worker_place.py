"""Where a script's own code raised an exception, or called what did."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from bftrainer.elastic.worker import place_of

CALL = "import {name}\n\n\ndef train():\n    {name}.read('[')\n\n\ntrain()\n"
READ = "import json\n\n\ndef read(text):\n    json.loads(text)\n"


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("own_reading.py", READ, "own_reading.py:5"),
        ("lib/python/site-packages/others_reading.py", READ, "train.py:5"),
        ("own_broken.py", "x = 1\ndef read(:\n", "own_broken.py:2"),
    ],
    ids=["a module of its own", "a library's", "a syntax error"],
)
def test_it_is_the_last_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, place: str
) -> None:
    module, script = tmp_path / file, tmp_path / "train.py"
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(text)
    script.write_text(CALL.format(name=module.stem))
    monkeypatch.syspath_prepend(str(module.parent))
    try:
        with pytest.raises(ValueError if text == READ else SyntaxError) as raised:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.modules.pop(module.stem, None)
    assert place_of(raised.value, str(script)) == place


def test_without_its_own_code_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int("x")
    assert place_of(raised.value, str(tmp_path / "train.py")) == ""
