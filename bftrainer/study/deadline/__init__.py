"""Says whether a study ends by its deadline on idle nodes alone (docs/design/studies.md, Deadline).

``history`` samples how many nodes were idle, ``futures`` draws how it may go on, ``work`` says how
fast so many nodes get through the study, ``finishing`` when that is done, ``reserve`` how many
reserved nodes make that certain enough, ``outlook`` all of it. Pure.
"""
