"""An attack on the TCP port of an own daemon's verbs, as a process that ends with its context."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support import far_attacker


@contextlib.contextmanager
def at_work(
    kind: str,
    host: str,
    port: int,
    recorded: Sequence[bytes],
    *,
    enter: Sequence[str] = (),  # what runs a command elsewhere
    uid: int = 0,  # 0: stay who it is
) -> Iterator[None]:
    """Attack while the context lasts; then connections have been made and no answer was heard."""
    source = Path(far_attacker.__file__).read_text()
    argv = (sys.executable, "-I", "-c", source, host, str(port), kind, str(uid))
    with subprocess.Popen(
        (*enter, *argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps([piece.hex() for piece in recorded]) + "\n")
            child.stdin.flush()
            assert child.stdout.readline() == "begun\n"
            yield
            told: dict[str, Any] = json.loads(child.communicate()[0])
            assert told["connections"] >= far_attacker.BEGUN
            assert not told["has_answers"]
        finally:
            child.kill()
