"""Reproductions of published evaluations: one package per paper.

A package ``bftrainer/lab/papers/NAME`` needs a docstring (the help of ``bftrainer reproduce
NAME``), a module ``paper`` that defines ``PAPER`` (``paper.Paper``) and ``expected.json``: the
published values with their sources. ``registry`` finds it by its folder. The other modules are the
frame:

* ``paper``: what a reproduction consists of: scenario, replays, results
* ``expected``: the published values
* ``findings``: what a result compares: lines, tables, charts
* ``reproduction``: plays the replays and computes the findings
* ``report``, ``markdown``, ``draw``: show them
"""
