"""A small GPT on text, in the shape of nanoGPT's train.py: evaluation, early stop, best model.

    bftrainer try text_gpt.py          # on this machine
    bftrainer submit --nodes 1:4 text_gpt.py

The text is Python's own help, which every Python has. Each worker evaluates: they have the same
parameters, so all find the same loss and stop at the same step. The best parameters so far are
registered state, so they outlive the worker that found them; rank 0 writes them to ``best.pt``, and
at the end ``result.json``. Several passes are made over the data, in micro-batches with
--micro-batch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its customary name
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

BLOCK = 32  # characters that the model sees
WIDTH = 32

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--characters", type=int, default=60_000)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--micro-batch", type=int, help="samples that fit on a worker at a time")
parser.add_argument("--eval-interval", type=int, default=20, help="updates")
parser.add_argument("--patience", type=int, default=5, help="evaluations without a better one")
parser.add_argument("--learning-rate", type=float, default=3e-3)
parser.add_argument("--warm-up", type=int, default=20, help="updates")
parser.add_argument("--seed", type=int, default=1337)
args = parser.parse_args()
results = Path(os.environ.get("BFT_CHECKPOINT_DIR") or ".")


class GPT(nn.Module):
    """Predicts the next character."""

    def __init__(self, n_characters: int) -> None:
        super().__init__()
        self.token = nn.Embedding(n_characters, WIDTH)
        self.place = nn.Embedding(BLOCK, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, n_characters)
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of every next character."""
        embedded = self.token(x) + self.place.weight
        logits: torch.Tensor = self.head(self.blocks(embedded, mask=self.mask))
        return logits


class Best:
    """The best evaluation so far, its parameters, and all losses; registered with the run."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.parameters: dict[str, torch.Tensor] = {}

    @property
    def since(self) -> int:
        """Evaluations since the best one."""
        return len(self.losses) - 1 - self.losses.index(min(self.losses)) if self.losses else 0

    def add(self, loss: float, model: nn.Module) -> bool:
        """Note an evaluation; return whether it is the best."""
        self.losses.append(loss)
        if self.since:
            return False
        self.parameters = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what joiners and checkpoints need."""
        return {"losses": self.losses, "parameters": self.parameters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what another worker, or an earlier run, had."""
        self.losses, self.parameters = list(state["losses"]), dict(state["parameters"])


def windows(ids: torch.Tensor) -> TensorDataset:
    """Cut the text into inputs and, one character later, what is to be predicted."""
    count = (len(ids) - 1) // BLOCK
    return TensorDataset(
        ids[: count * BLOCK].view(count, BLOCK), ids[1 : count * BLOCK + 1].view(count, BLOCK)
    )


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean over the batch."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: TensorDataset) -> float:
    """Return the loss on held-out text; it must take less than 30 s, for which others wait."""
    model.eval()
    losses = [loss_of(model, x, y).item() * len(x) for x, y in DataLoader(data, batch_size=256)]
    model.train()
    return sum(losses) / len(data)


def rate_at(step: int, steps: int) -> float:
    """Return nanoGPT's learning rate: warm-up, then a cosine. By updates: the same at any size."""
    rate: float = args.learning_rate
    warm_up: float = min(1.0, (step + 1) / args.warm_up)
    rate *= 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps))
    return rate * warm_up


torch.manual_seed(args.seed)
text = "".join(topics.values())[: args.characters]
vocabulary = {character: i for i, character in enumerate(sorted(set(text)))}
ids = torch.tensor([vocabulary[character] for character in text])
cut = len(ids) * 9 // 10
train, held_out = windows(ids[:cut]), windows(ids[cut:])

model, best = GPT(len(vocabulary)), Best()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
run = elastic.Run(
    model,
    optimizer,
    loader,
    extra={"best": best},
    epochs=args.epochs,
    batch=elastic.GlobalBatch(max_per_worker=args.micro_batch),
)


def train_all() -> None:
    """Loop over the data until all epochs are done or the model no longer gets better."""
    steps = args.epochs * len(loader)
    for epoch in run.epochs():
        for x, y in run.batches():
            optimizer.param_groups[0]["lr"] = rate_at(run.step_count, steps)
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            # True: the update counts. Everything below is then part of the state handed over.
            if not run.step() or run.step_count % args.eval_interval:
                continue
            is_best = best.add(evaluate(model, held_out), model)
            if run.is_first:
                print(f"epoch {epoch}, update {run.step_count}: {best.losses[-1]:.4f}")
            if run.is_first and is_best:
                fresh = results / "best.pt.fresh"
                torch.save(best.parameters, fresh)
                fresh.replace(results / "best.pt")
            if best.since >= args.patience:
                return


train_all()
run.finish()  # after an early return, too, only rank 0 goes on
if best.parameters:
    model.load_state_dict(best.parameters)
final = evaluate(model, held_out)
print(f"best held-out loss {final:.4f} after {run.step_count} updates")
result = {"losses": best.losses, "best": final, "steps": run.step_count}
(results / "result.json").write_text(json.dumps(result))
