"""The probability that a study meets its deadline on idle nodes (docs/design/studies.md, Deadline).

``futures`` samples how many nodes were idle and draws futures from that, ``work`` computes how fast
the study progresses on so many nodes and when it is done, ``outlook`` makes the probability of it
and finds how many reserved nodes make it large enough. Pure.
"""
