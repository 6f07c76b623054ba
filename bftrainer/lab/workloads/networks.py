"""Table 2 of the paper: throughput of seven networks on 1 to 64 nodes of Summit.

Source: Liu et al., "BFTrainer" (arXiv 2106.12091), Table 2: ImageNet, data parallelism,
a minibatch of 32 per GPU, thousands of samples per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from milp.problem import Curve

SIZES = (1, 2, 4, 8, 16, 32, 64)
SAMPLES = 130e6  # 100 epochs of ImageNet, as each trainer of the paper
_KILO_SAMPLES_PER_S = {
    "AlexNet": (7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1),
    "ResNet18": (5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7),
    "MnasNet": (3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5),
    "MobileNets": (3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2),
    "ShuffleNet": (2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1),
    "VGG-16": (1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2),
    "DenseNet": (1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of Table 2."""

    name: str
    curve: Curve

    @property
    def slug(self) -> str:
        """Its name on the command line."""
        return self.name.lower()

    def scaling_efficiency(self, size: int) -> float:
        """Return the throughput at a size of the table over that of one node, per node."""
        at = SIZES.index(size)
        return self.curve.samples_per_s[at] / self.curve.samples_per_s[0] / size


NETWORKS: Mapping[str, Network] = {
    name.lower(): Network(
        name=name,
        curve=Curve(
            sizes=SIZES, samples_per_s=tuple(round(1000.0 * kilo, 3) for kilo in kilo_samples_per_s)
        ),
    )
    for name, kilo_samples_per_s in _KILO_SAMPLES_PER_S.items()
}
