"""Adapter from the generation's store to torch's ``Store``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

from bftrainer.elastic.store import StoreClient


class TorchStore(Store):
    """Implements what a process group uses: ``set``, ``get`` and ``wait``."""

    def __init__(self, client: StoreClient) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value."""
        self._client.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a value; blocks until a member has set it."""
        return self._client.get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        if timeout is not None:
            self._client.limit(timeout.total_seconds())
        for key in keys:
            self._client.get(key)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
