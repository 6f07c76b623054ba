"""Plans of studies for rented nodes (docs/design/studies.md, section Planner). Pure.

The model is RubberBand's (Misra et al., EuroSys 2021): how many GPUs each stage of a study has, so
that it ends by a deadline at the least cost.

A GPU is what the throughput curve counts, the unit of a trial's size: a node, or a GPU of one. An
instance is what is rented: one or several of these.
"""
