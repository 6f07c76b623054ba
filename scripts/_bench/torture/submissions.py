"""A user of bftrainer who submits what nobody should.

Sizes are above the machine's, so that what is accepted takes no node by fair competition.
"""

from __future__ import annotations

import getpass
import http.client
import json
import random
import socket
from pathlib import Path
from typing import Any

from bftrainer.api.documents import encode, schema
from bftrainer.model.trainer import TrainerSpec

ODD: tuple[Any, ...] = (
    *(0, -1, 1, 10**18, 2**40, 10**400, 1e-320, 1e-20, 1e16, 1e308, True, None, "1", [], {}),
    *("", "x" * 5_000, "\0", "\u202e", "/proc/1/fd", "/etc/passwd/x", "/./tmp//x/.."),
    *(
        "$(touch x)",
        "`touch x`",
        "a;touch x",
        "../../x",
        "\x1b]52;c;cm0K\x07",
        "<script>x</script>",
    ),
    *("%n%s", "{0.__class__}", "\u2028", "a\nBFT-0000 forged", "-rf", "' OR 1=1 --", "\ud800"),
)
MOST_NODES = 10**6
PATIENCE_S = 30.0


class Submitter:
    """Bends a plain specification and hands it in."""

    def __init__(self, socket_path: Path, directory: Path, n_nodes: int) -> None:
        self._socket_path = socket_path
        self._directory = directory
        self._least = n_nodes + 1
        self._accepted: list[str] = []

    def submit(self, chance: random.Random) -> str:
        """Hand in one, or cancel one of those that were accepted."""
        if self._accepted and chance.random() < 0.3:
            path = f"/v1/trainers/{self._accepted.pop()}"
            return f"DELETE {self._ask('DELETE', path, None)[0]}"
        body = {"schema": schema("submit"), "spec": self._bent(chance)}
        status, answer = self._ask("POST", "/v1/trainers", json.dumps(body).encode())
        if status < http.client.BAD_REQUEST:
            self._accepted.append(answer["record"]["trainer_id"])
        return f"POST {status}"

    def end(self) -> None:
        """Cancel what is left."""
        while self._accepted:
            self._ask("DELETE", f"/v1/trainers/{self._accepted.pop()}", None)

    def _bent(self, chance: random.Random) -> dict[str, Any]:
        name = f"odd{chance.randrange(10**9)}"
        plain = TrainerSpec(
            name=name,
            user=getpass.getuser(),
            script="/dev/null",
            checkpoint_dir=str(self._directory / name),
        )
        spec = dict(encode(plain))
        for _ in range(chance.randrange(3)):
            spec[chance.choice(sorted(spec))] = chance.choice(ODD)
        if chance.random() < 0.5:
            spec["curve"] = {
                "sizes": [chance.choice((1, 2, 2**40, 10**400)), MOST_NODES],
                "samples_per_s": [chance.choice(ODD), chance.choice((1e-20, 1e16, 1e300, 5.0))],
            }
        if chance.random() < 0.1:
            spec["environment"] = [[f"V{n}", "v" * 4_000] for n in range(120)]
        return {**spec, "n_min": self._least, "n_max": MOST_NODES}

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(PATIENCE_S)
        try:
            connection.sock.connect(str(self._socket_path))
            connection.request(method, path, body=body)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= http.client.BAD_REQUEST:
                return answer.status, {}
            return answer.status, json.loads(text)
        except (OSError, http.client.HTTPException):
            return http.client.SERVICE_UNAVAILABLE, {}  # turned away: also an answer
        finally:
            connection.close()
