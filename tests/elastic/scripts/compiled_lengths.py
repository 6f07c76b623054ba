"""Compiled models over batches whose lengths vary, padded and masked.

Settings come as one JSON argument: ``network``, whether it is ``compiled``, and whether the loss,
a mean over words, is given its ``weight``. Some samples have no word that counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from bftrainer import elastic

settings: dict[str, Any] = {
    "network": "gru",
    "compiled": True,
    "weight": True,
    "steps": 40,
    "is_led": False,  # makes updates only up to the number in the file "allowed"
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}
WORDS, WIDTH, PAD, BATCH, SAMPLES, LONGEST = 12, 8, 0, 6, 48, 9
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)
torch.set_num_threads(1)
torch.manual_seed(4)


class Sentences(Dataset[torch.Tensor]):
    """Sentences of 1 to ``LONGEST`` words; the first word of each is not predicted."""

    def __init__(self) -> None:
        lengths = [1 if i % 3 < 2 else 2 + i % LONGEST for i in range(SAMPLES)]
        self.rows = [torch.randint(1, WORDS, (length,)) for length in lengths]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.rows[place]


class Recurrent(nn.Module):
    """A recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.cell(self.embed(words))
        return self.head(hidden)  # type: ignore[no-any-return]


class Attentive(nn.Module):
    """Attention to the words before, and to none of the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(self.embed(words)).chunk(3, -1)
        length = words.shape[1]
        hides = torch.ones(length, length, dtype=torch.bool, device=words.device).triu(1)
        hides = hides | (words == PAD)[:, None, :]
        scores = (query @ key.transpose(1, 2)).masked_fill(hides, float("-inf"))
        return self.head(scores.softmax(-1) @ value)  # type: ignore[no-any-return]


def padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return rows as one table, with at least one word to predict."""
    table = pad_sequence(list(rows), batch_first=True, padding_value=PAD)
    return functional.pad(table, (0, max(0, 2 - table.shape[1])), value=PAD)


net: Any = {"gru": Recurrent, "attention": Attentive}[settings["network"]]()
optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
loader = DataLoader(Sentences(), batch_size=BATCH, collate_fn=padded)
model: Any = torch.compile(net, dynamic=True) if settings["compiled"] else net
run = elastic.Run(model, optimizer, loader, steps=settings["steps"])


@run.on_entered
def entered(info: elastic.GenerationInfo) -> None:
    told = {"kind": "enter", "generation": info.generation, "step": info.step, "size": info.size}
    journal.write(json.dumps(told) + "\n")


def await_leave() -> None:
    """Wait until another update is allowed."""
    while settings["is_led"] and run.step_count >= int((directory / "allowed").read_text()):
        time.sleep(0.01)


for _ in run.epochs():
    for words in run.batches():
        targets = words[:, 1:]
        count = int((targets != PAD).sum())
        if settings["weight"]:
            run.weight(count)
        optimizer.zero_grad()
        guesses = model(words[:, :-1]).flatten(0, 1)
        loss = functional.cross_entropy(guesses, targets.flatten(), ignore_index=PAD)
        loss.backward()
        if run.step():
            at_s, told = time.time(), {"kind": "commit", "step": run.step_count}
            told |= {"loss": loss.item(), "count": count, "size": run.size}
            journal.write(json.dumps(told | {"at_s": at_s}) + "\n")
            await_leave()
result = {name: p.detach().flatten().tolist() for name, p in net.named_parameters()}
(directory / "result.json").write_text(json.dumps(result))
