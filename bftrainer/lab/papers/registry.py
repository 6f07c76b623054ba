"""Finds the papers: every package below ``bftrainer/lab/papers`` is one."""

from __future__ import annotations

import importlib
import pkgutil

from bftrainer.lab import papers
from bftrainer.lab.papers.paper import Paper


def names() -> list[str]:
    """Return the names of all papers, sorted; imports none of them."""
    return sorted(found.name for found in pkgutil.iter_modules(papers.__path__) if found.ispkg)


def about(name: str) -> str:
    """Return the docstring of a paper's package; imports no more than that."""
    return importlib.import_module(f"{papers.__name__}.{name}").__doc__ or ""


def load(name: str) -> Paper:
    """Return a paper by its name."""
    paper = importlib.import_module(f"{papers.__name__}.{name}.paper").PAPER
    if not isinstance(paper, Paper):
        raise TypeError(f"{papers.__name__}.{name}.paper:PAPER is not a Paper")
    return paper
