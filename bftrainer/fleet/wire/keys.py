"""CURVE key pairs: generated, stored in private files, validated when read.

The daemon has one pair, each pilot's agent another. Public keys are sent in configurations and
rosters; secret ones never leave their file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from bftrainer.fleet.wire.private import read_private, write_private
from bftrainer.model.errors import BftError, ExitCode

Z85_KEY_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A CURVE key pair in Z85 text; the secret half is not in its ``repr``."""

    public: str
    secret: str = field(repr=False)

    def prove(self, client: zmq.Socket[bytes], server_key: str) -> None:
        """Have a client's socket prove that it has this pair, to the holder of ``server_key``."""
        client.set(zmq.CURVE_SERVERKEY, server_key.encode("ascii"))
        client.set(zmq.CURVE_PUBLICKEY, self.public.encode("ascii"))
        client.set(zmq.CURVE_SECRETKEY, self.secret.encode("ascii"))


def generate_pair() -> KeyPair:
    """Return a fresh pair from libzmq's random source."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public.decode("ascii"), secret=secret.decode("ascii"))


def save_pair(pair: KeyPair, path: Path) -> None:
    """Write the pair to a new 0600 file; BFT-1302 when ``path`` exists."""
    write_private(path, pair_text(pair).encode())


def replace_pair(pair: KeyPair, path: Path) -> None:
    """Write the pair to a 0600 file in place of what is there, atomically.

    Raises:
        BftError: BFT-1302, the directory cannot be written.
        OSError: what is there cannot be replaced.
    """
    draft = path.with_name(f".{path.name}.next")
    draft.unlink(missing_ok=True)  # of a writer that was killed
    save_pair(pair, draft)
    draft.replace(path)


def pair_text(pair: KeyPair) -> str:
    """Return the contents of such a file."""
    return json.dumps({"public": pair.public, "secret": pair.secret})


def load_pair(path: Path) -> KeyPair:
    """Read a pair; BFT-1302 when the file is not private or not a pair."""
    data = read_private(path, limit_bytes=4096)
    try:
        body = json.loads(data)
        pair = KeyPair(public=str(body["public"]), secret=str(body["secret"]))
        is_pair = (
            len(pair.secret) == Z85_KEY_CHARS
            and zmq.curve_public(pair.secret.encode("ascii")).decode("ascii") == pair.public
        )
    except (ValueError, KeyError, TypeError, RecursionError, zmq.ZMQError):
        is_pair = False
    if not is_pair:
        # No "from": the parser's message could quote a piece of the secret.
        raise BftError(
            "BFT-1302",
            f"The key file {path} does not hold a CURVE key pair.",
            "Remove it and let bftrainer write it again.",
            exit_code=ExitCode.VALIDATION_FAILED,
        ) from None
    return pair


def load_or_create_pair(path: Path) -> KeyPair:
    """Return the pair at ``path``; write a fresh one when there is no file yet."""
    if path.is_symlink() or path.exists():
        return load_pair(path)
    pair = generate_pair()
    save_pair(pair, path)
    return pair
