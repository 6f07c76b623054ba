"""A convolutional network on handwritten digits with the Trainer of Lightning.

The marked lines are all that differs from a script for one process. Prints the test
accuracy and writes it to ``result.json``.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its customary name
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.elastic.hooks.lightning import (  # elastic: 1 of 2
    ElasticCallback,
    ElasticEnvironment,
)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
results = Path(os.environ.get("BFT_CHECKPOINT_DIR") or ".")

pixels, labels = load_digits(return_X_y=True)
x_all = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
y_all = torch.tensor(labels, dtype=torch.long)
order = torch.randperm(len(x_all), generator=torch.Generator().manual_seed(0))
train, test = order[:1437], order[1437:]


class Digits(lightning.LightningModule):  # type: ignore[misc]  # lightning is optional
    """An ordinary LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def training_step(self, batch: Any, _batch_index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = F.cross_entropy(self.layers(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """Return optimizer and schedule."""
        optimizer = torch.optim.Adam(self.parameters(), lr=0.003)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)]


lightning.seed_everything(0)
module = Digits()
trainer = lightning.Trainer(
    max_epochs=args.epochs,
    accumulate_grad_batches=args.accumulate,
    devices=1,
    default_root_dir=results,
    enable_checkpointing=False,  # bftrainer's own checkpoints are enough to go on
    logger=False,
    callbacks=[ElasticCallback()],  # elastic: 2 of 2, with the next
    plugins=[ElasticEnvironment()],
)
trainer.fit(
    module, DataLoader(TensorDataset(x_all[train], y_all[train]), args.batch_size, shuffle=True)
)

# After fit() only rank 0 is left.
module.eval()
with torch.no_grad():
    accuracy = (module.layers(x_all[test]).argmax(1) == y_all[test]).float().mean().item()
print(f"test accuracy {accuracy:.4f}")
(results / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))
