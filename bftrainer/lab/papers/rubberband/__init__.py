"""Repeat section 6 of "RubberBand: Cloud-based Hyperparameter Tuning": Tables 1-4, Figs. 9-12.

Misra et al., EuroSys 2021. ``setting`` has the experiments and plans one study with a planner of
``bftrainer.study.plan``, ``profiles`` the scaling profiles (Table 1). The findings are in
``tables`` (2 and 3), ``figures``, ``residual`` (whether any profile gives Table 2, and what of the
paper contradicts itself) and ``placement`` (Algorithm 3).
"""
