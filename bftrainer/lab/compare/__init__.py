"""Policies side by side: the same workloads with each of them, with confidence intervals.

An arena of ``arenas`` plays one policy with one seed; ``arenas.play_all`` plays all pairs in
several processes; ``table`` makes means with confidence intervals of them and writes them as
JSON and HTML.
"""
