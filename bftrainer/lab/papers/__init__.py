"""Reproductions of published evaluations: one package per paper.

A package ``bftrainer/lab/papers/NAME`` needs a docstring (its first paragraph is the help of
``bftrainer reproduce NAME``), a module ``paper`` that defines ``PAPER`` (``paper.Paper``) and
``expected.json``: the published values with their sources. ``paper`` finds it by its folder and
plays its replays; ``findings`` compares; ``verdicts`` judges; ``report`` shows.
"""
