"""The generation's store as torch's process groups want it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

from bftrainer.elastic.store import StoreClient


class TorchStore(Store):
    """What a process group asks: ``set``, ``get`` and ``wait``, no more."""

    def __init__(self, client: StoreClient) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: bytes | str) -> None:
        """Tell the others."""
        self._client.set(key, value)

    def get(self, key: str) -> bytes:
        """Return what a member has set, waiting for it."""
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
