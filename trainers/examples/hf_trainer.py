"""A small residual network on handwritten digits with the Trainer of transformers.

The marked lines are all that differs from a script for one process. The model is made
from a configuration: nothing is downloaded. Prints the test accuracy and writes it to
``result.json``.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

from bftrainer.elastic.hooks.huggingface import ElasticCallback  # elastic: 1 of 2

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
results = Path(os.environ.get("BFT_CHECKPOINT_DIR") or ".")


class Digits(Dataset[Any]):
    """Pictures under the names that the model takes."""

    def __init__(self, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": self.pixels[i], "labels": self.labels[i]}


pixels, labels = load_digits(return_X_y=True)
x_all = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
y_all = torch.tensor(labels, dtype=torch.long)
order = torch.randperm(len(x_all), generator=torch.Generator().manual_seed(0))
train, test = order[:1437], order[1437:]

set_seed(0)
model = ResNetForImageClassification(
    ResNetConfig(
        num_channels=1,
        embedding_size=16,
        hidden_sizes=[32, 64],
        depths=[1, 1],
        layer_type="basic",
        num_labels=10,
    )
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=str(results / "trainer"),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        eval_strategy="epoch",
        save_strategy="no",  # bftrainer's own checkpoints are enough to go on
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=Digits(x_all[train], y_all[train]),
    eval_dataset=Digits(x_all[test], y_all[test]),
)
trainer.add_callback(ElasticCallback(trainer))  # elastic: 2 of 2
trainer.train()

# After train() only rank 0 is left.
logits = torch.tensor(trainer.predict(trainer.eval_dataset).predictions)
accuracy = (logits.argmax(1) == y_all[test]).float().mean().item()
print(f"test accuracy {accuracy:.4f}")
(results / "result.json").write_text(json.dumps({"accuracy": accuracy, "epochs": args.epochs}))
