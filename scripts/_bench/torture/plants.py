"""Eve puts into a directory that all may write what others' verbs may import, open or follow.

Her code and links leave a mark if they are run or written through: ``Plants.marks``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

SHARED = Path("/home/shared")  # one directory below it for each slice; ada makes them
STUDY, TRAINER = "s", "v"  # the names she will use there
CANARY = Path("/home/ada/first/precious")
MODULES = ("click", "random", "select", "json", "sitecustomize", "torch", "optuna", "numpy")
_HOSTILE = """\
import os
if os.getuid() != {uid}:
    with open({mark!r}, "a") as marks:
        marks.write(f"{{__file__}} as {{os.getuid()}}\\n")
"""
_SUMMARY: dict[str, object] = {
    "schema": "bftrainer/study/1", "study": "s-abc123", "name": "s", "state": "\x1b]52;c;cm0K\x07",
    "metric": "\x1b[2J", "direction": "minimize", "unit": "epochs", "best": None, "rungs": [],
}  # fmt: skip


class Plants:
    """What is planted in each new directory; its kind changes from one to the next."""

    def __init__(self) -> None:
        self._planted = set[Path]()
        self._hostile = _HOSTILE.format(uid=os.getuid(), mark=str(SHARED / "marks"))

    def plant(self, chance: random.Random) -> str:
        """Look for a new directory, and plant everything that is not there yet."""
        places = [place for place in SHARED.glob("slice-*") if place not in self._planted]
        for place in places:
            self._planted.add(place)
            for plant in (self._modules, self._study, self._checkpoints):
                with contextlib.suppress(OSError):  # it is ada's already: she was first
                    plant(place, chance)
        return "planted" if places else "nothing new"

    def _modules(self, place: Path, _chance: random.Random) -> None:
        for name in MODULES:
            (place / f"{name}.py").write_text(self._hostile)

    def _study(self, place: Path, chance: random.Random) -> None:
        if chance.random() < 0.5:  # otherwise hers can begin, with the modules beside it
            return
        study = place / f"{STUDY}.study"
        study.mkdir(mode=0o777)
        study.chmod(0o777)
        script = place / "hostile.py"
        script.write_text(self._hostile)
        for name in ("study.json", "summary.json", "optuna.log", "loop.log"):
            kind = chance.choice(("pipe", "zero", "null", "text", "deep", "link"))
            path = study / name
            if kind == "pipe":
                os.mkfifo(path, 0o666)
            elif kind in {"zero", "link"}:
                path.symlink_to("/dev/zero" if kind == "zero" else CANARY)
            else:
                text = {"null": "null\n", "deep": "[" * 100_000, "text": json.dumps(_SUMMARY)}
                path.write_text(text[kind])

    def _checkpoints(self, place: Path, chance: random.Random) -> None:
        logs = place / f"bft-{TRAINER}" / "logs"
        logs.mkdir(parents=True)
        for path in (logs.parent, logs):
            path.chmod(0o777)
        is_link = chance.random() < 0.5
        for name in _log_names():
            if is_link:
                (logs / name).symlink_to(CANARY)
            else:
                os.mkfifo(logs / name, 0o666)


def _log_names() -> Iterator[str]:
    for trainer in range(1, 400):
        yield f"t{trainer}-1-1.log"
