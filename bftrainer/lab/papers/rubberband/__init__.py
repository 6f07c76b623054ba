"""Repeat section 6 of "RubberBand: Cloud-based Hyperparameter Tuning": Tables 1-4, Figs. 9-12.

Misra et al., EuroSys 2021. ``paper`` lists the results, ``setting`` has the experiments and what is
assumed, ``profiles`` the scaling profiles, ``replays`` plans one study with a planner of
``bftrainer.study.plan``. The findings are in ``ring`` (Table 1), ``contradictions``, ``residual``
(whether any profile gives Table 2), ``deadlines``, ``schedule``, ``models`` (Tables 2 to 4),
``stragglers``, ``figures``, ``instance_start`` (Figs. 9 to 12) and ``placement`` (Algorithm 3).
"""
