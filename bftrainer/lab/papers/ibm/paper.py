"""The results of section IV, in the paper's order."""

from __future__ import annotations

from bftrainer.lab.papers.ibm import figures, tables
from bftrainer.lab.papers.ibm.replays import longest_first, play
from bftrainer.lab.papers.ibm.setting import EXPECTED, FULL, QUICK, choose_scenario
from bftrainer.lab.papers.paper import Paper, Result

LIGHT_LOAD = (
    "by sign only: at the rates of the text 40 GPUs are loaded to a quarter, so that hardly a job "
    "is dropped; half as many GPUs would come nearer to Fig. 5, no number fits all figures"
)
OVERLOAD = (
    "Table III was fitted by 2 seeds, Table IV is predicted from it; the queued baseline is "
    "overloaded, so that its completion time grows with the experiment"
)

RESULTS: tuple[Result, ...] = (
    Result(
        result_id="live",
        shows="the curves labelled Cloud, and the columns Actual of Table III",
        how="not computed",
        missing="they were measured on 40 GPUs with FfDL; the paper's own simulator is "
        "what is repeated here",
    ),
    Result(
        result_id="table2",
        shows="Table II: scaling factors of category 1",
        how="eq. 1 with t_proc and t_comm of category 1",
        tolerance=2.5,
        find=tables.table2,
    ),
    Result(
        result_id="fig5",
        shows="Fig. 5: jobs completed by category, random batch as the baseline",
        how="40 GPUs, 240 min, jobs of 30 min, rates of the text, mean over seeds",
        why=LIGHT_LOAD,
        runs=figures.fig5_runs,
        find=figures.fig5,
    ),
    Result(
        result_id="fig6",
        shows="Fig. 6: low and bursty arrivals",
        how="as Fig. 5, category 1",
        why=LIGHT_LOAD,
        runs=figures.fig6_runs,
        find=figures.fig6,
    ),
    Result(
        result_id="fig8",
        shows="Fig. 8: the largest and the smallest batch as the baseline",
        how="as Fig. 5, category 1",
        why=LIGHT_LOAD,
        runs=figures.fig8_runs,
        find=figures.fig8,
    ),
    Result(
        result_id="table3",
        shows="Table III: 40 GPUs, all categories",
        how="means over seeds that the fit did not use; deviations in percent of the value",
        why=OVERLOAD,
        tolerance=20.0,
        runs=tables.table3_runs,
        find=tables.table3,
    ),
    Result(
        result_id="table4",
        shows="Table IV: 400 GPUs, all categories",
        how="as Table III",
        why=OVERLOAD,
        tolerance=20.0,
        runs=tables.table4_runs,
        find=tables.table4,
    ),
    Result(
        result_id="sensitivity",
        shows="the order of Table III, with one assumption changed",
        how="as Table III, fewer seeds",
        runs=tables.runs,
        find=tables.find,
    ),
)

PAPER = Paper(
    citation=EXPECTED.citation,
    section="section IV",
    results=RESULTS,
    full=FULL,
    quick=QUICK,
    choose_scenario=choose_scenario,
    play=play,
    cost=longest_first,
    reads_trace=False,
)
