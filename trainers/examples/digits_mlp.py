"""A multilayer perceptron on handwritten digits: an ordinary script, elastic by five lines.

Run it plainly (``python digits_mlp.py``) or submit it; the marked lines are all that
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

torch.manual_seed(args.seed)
model = nn.Sequential(
    nn.Linear(64, 256),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(256, 128),
    nn.ReLU(),
    nn.Linear(128, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
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
