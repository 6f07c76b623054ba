"""A small transformer on handwritten digits: an ordinary script, elastic by five lines.

Run it plainly (``python digits_transformer.py``) or submit it; the marked lines are all that
differs from a script for one process. Real data: the 1,797 handwritten digits that
ship with scikit-learn. Prints the test accuracy and writes it to ``result.json``.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its customary name
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic  # elastic: 1 of 5

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--learning-rate", type=float, default=0.003)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(0)  # the same split whatever --seed
pixels, labels = load_digits(return_X_y=True)
x_all = torch.tensor(pixels, dtype=torch.float32) / 16
y_all = torch.tensor(labels, dtype=torch.long)
order = torch.randperm(len(x_all))
train, test = order[:1437], order[1437:]


class RowTransformer(nn.Module):
    """Reads a digit as eight rows of eight pixels."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.place = nn.Parameter(0.02 * torch.randn(1, 8, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of flat images."""
        rows = self.embed(x.unflatten(1, (8, 8))) + self.place
        logits: torch.Tensor = self.head(self.encoder(rows).mean(dim=1))
        return logits


torch.manual_seed(args.seed)
model = RowTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

loader = DataLoader(
    TensorDataset(x_all[train], y_all[train]), batch_size=args.batch_size, shuffle=True
)
run = elastic.Run(model, optimizer, loader, scheduler=scheduler, epochs=args.epochs)  # elastic: 2

for _epoch in run.epochs():  # elastic: 3, instead of range(args.epochs)
    model.train()
    for x, y in run.batches():  # elastic: 4, instead of loader
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        run.step()  # elastic: 5, instead of optimizer.step()
    scheduler.step()

model.eval()
with torch.no_grad():
    accuracy = (model(x_all[test]).argmax(1) == y_all[test]).float().mean().item()
print(f"test accuracy {accuracy:.4f}")
result = Path(os.environ.get("BFT_CHECKPOINT_DIR") or ".") / "result.json"
result.write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))
