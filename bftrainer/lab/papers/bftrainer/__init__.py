"""Replay section 5 of the BFTrainer paper: Figs. 7 to 16, Tables 3 and 4.

Liu et al., arXiv 2106.12091. ``scenario`` chooses trace and workload, ``replays`` plays one
setting, ``series`` gives it over time. The findings are in ``forward_time`` and ``diverse``.
"""
