"""What rented instances cost, and how long they take to come (section 4.1 of the paper)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Billing(enum.StrEnum):
    """What is paid for."""

    INSTANCE = "instance"  # the time for which one has it
    FUNCTION = "function"  # the GPUs that train, and its initialisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One kind of instance."""

    gpus_per_instance: int = 1
    price_h: float = 1.0  # of an instance, an hour
    billing: Billing = Billing.INSTANCE
    minimum_s: float = 0.0  # an instance costs at least as much as for this long
    scale_s: float = 0.0  # from the request until it is there; not billed
    init_s: float = 0.0  # until it is usable; billed
    data_price: float = 0.0  # each new instance downloads the data for this

    @property
    def price_s(self) -> float:
        """Price of an instance, a second."""
        return self.price_h / 3600.0

    @property
    def is_free_to_grow(self) -> bool:
        """Whether a new instance costs neither time nor money, so that none is worth keeping."""
        return self.scale_s == 0.0 and self.init_s == 0.0 and self.data_price == 0.0

    def instances(self, gpus: int) -> int:
        """Return how many instances have so many GPUs."""
        return -(-gpus // self.gpus_per_instance)
