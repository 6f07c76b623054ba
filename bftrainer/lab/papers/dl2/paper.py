"""The results of section 6, in the paper's order."""

from __future__ import annotations

from bftrainer.lab.papers.dl2 import learners
from bftrainer.lab.papers.dl2.replays import longest_first, play
from bftrainer.lab.papers.dl2.setting import EXPECTED, FULL, QUICK
from bftrainer.lab.papers.dl2.speeds import choose_scenario
from bftrainer.lab.papers.paper import Paper, Result

BEYOND = (
    "beyond what anybody gains here who knows the true speeds; the paper's trace, placement and "
    "interference are not published"
)

RESULTS: tuple[Result, ...] = (
    Result(
        result_id="baselines",
        shows="Fig. 9: Optimus, Tetris and DRF",
        how="500 servers, 200 jobs, means of 10 traces; of Optimus the paper's ratio to DL2 over "
        "DL2's to DRF",
        tolerance=4.0,
        runs=learners.runs,
        find=learners.find,
    ),
    Result(
        result_id="ceiling",
        shows="Fig. 9: DL2 takes 44.1% less time than DRF",
        how="what is gained by rules that know the true speed of every size",
        why=BEYOND,
        runs=learners.ceiling_runs,
        find=learners.ceiling,
    ),
    Result(
        result_id="warm-up",
        shows="Fig. 10: after supervised learning it is close to DRF",
        how="testbed, 10 traces that were not learnt from; one label per step of DRF, void too",
        runs=learners.warm_up_runs,
        find=learners.warm_up,
    ),
    Result(
        result_id="fig10",
        shows="Fig. 10: what reinforcement learning adds to a warm-up by DRF",
        how="per-job network, rollouts with the mean of their trace as the baseline; validation "
        "chooses, 10 other traces are shown",
        why=BEYOND,
        runs=learners.fig10_runs,
        find=learners.fig10,
    ),
    Result(
        result_id="published",
        shows="Fig. 10: the same, with the learner of the paper",
        how="its network, hyper-parameters, replay and exploration; last update",
        why="it does not improve here: some 50 actions share one reward, and a warmed-up policy "
        "hardly tries another",
        runs=learners.papers_runs,
        find=learners.papers,
    ),
    Result(
        result_id="all-reduce",
        shows="beyond the paper: jobs without servers",
        how="64 GPUs, 60 jobs; the learner of Fig. 10 with labels as they are",
        runs=learners.all_reduce_runs,
        find=learners.all_reduce,
    ),
    Result(
        result_id="code",
        shows="what the published code does that the paper does not say",
        how="read; nothing is played",
        find=learners.differences,
    ),
    Result(
        result_id="fig11",
        shows="Figs. 11 and 12: overhead of scaling",
        how="not computed",
        missing="they were measured with parameter servers of MXNet",
    ),
    Result(
        result_id="table2",
        shows="Table 2: the learner without critic, exploration or replay",
        how="not computed",
        missing="the paper's learner gains nothing here that could be lost",
    ),
)

PAPER = Paper(
    citation=EXPECTED.citation,
    section="section 6",
    results=RESULTS,
    full=FULL,
    quick=QUICK,
    choose_scenario=choose_scenario,
    play=play,
    cost=longest_first,
    reads_trace=False,
)
