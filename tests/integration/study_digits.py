"""A trial that the tests of real studies run: a small network on handwritten digits.

They put the data beside it: scikit-learn takes longer to import than two epochs take to train.
"""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its customary name
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

p = elastic.params()
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.load(Path(__file__).with_name("digits.pt"))
order = torch.randperm(len(x))
train, test = order[:1437], order[1437:]
width = int(p.get("width", 16))
model = nn.Sequential(
    nn.Conv2d(1, width, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(width, width, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(float(p.get("dropout", 0.0))),
    nn.Linear(width * 16, 10),
)
optimizer = torch.optim.SGD(
    model.parameters(), lr=float(p.get("lr", 0.1)), momentum=float(p.get("momentum", 0.9))
)
loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=64, shuffle=True)
# The same bits at any size: trials are compared, not the nodes they happened to have.
run = elastic.Run(model, optimizer, loader, epochs=36, bitwise=elastic.LogicalWorkers(2))
for _epoch in run.epochs():
    model.train()
    for a, b in run.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        run.step()
    model.eval()
    with torch.no_grad():
        run.report(F.cross_entropy(model(x[test]), y[test]).item())
