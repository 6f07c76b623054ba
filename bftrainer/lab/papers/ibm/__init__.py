"""Replay section IV of the IBM elastic scaling paper: Tables II to IV, Figs. 5, 6 and 8.

Saxena et al., arXiv 2006.13878. ``jobs`` has the job categories, their scaling factors and
arrivals, ``simulator`` is the paper's (section III-E), ``replays`` plays one experiment,
``figures`` has the findings, tables and sensitivity, too.
"""
