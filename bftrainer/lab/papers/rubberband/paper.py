"""The results of section 6, in the paper's order."""

from __future__ import annotations

from bftrainer.lab.papers.paper import Paper, Result
from bftrainer.lab.papers.rubberband import (
    contradictions,
    deadlines,
    figures,
    instance_start,
    models,
    placement,
    profiles,
    residual,
    schedule,
    stragglers,
)
from bftrainer.lab.papers.rubberband.replays import longest_first, play
from bftrainer.lab.papers.rubberband.setting import EXPECTED, FULL, QUICK, choose_scenario

RESULTS: tuple[Result, ...] = (
    Result(
        result_id="fig9",
        shows="Fig. 9: stragglers, paid per instance and per function",
        how="the static and the exact plan of 20 min, made without stragglers, SHA(64, 4, 508); "
        "what each costs with stragglers under both billings",
        runs=stragglers.runs,
        find=stragglers.find,
    ),
    Result(
        result_id="fig10",
        shows="Fig. 10: the price of data",
        how="static over exact plans by deadline, SHA(64, 4, 508); CIFAR-10 at 15 min",
        runs=figures.fig10_runs,
        find=figures.fig10,
    ),
    Result(
        result_id="fig11",
        shows="Fig. 11: the number of trials",
        how="static and exact plans of 20 min, SHA(k, 4, 508)",
        runs=figures.fig11_runs,
        find=figures.fig11,
    ),
    Result(
        result_id="fig12",
        shows="Fig. 12: the initialisation of instances",
        how="static, Alg. 2 literal and exact plans of 90 to 160 min, SHA(512, 4, 4096)",
        runs=instance_start.runs,
        find=instance_start.find,
    ),
    Result(
        result_id="table1",
        shows="Table 1: throughput with and without placement",
        how="ring all-reduce of 102 MB, one bandwidth fitted to each column",
        find=profiles.find,
    ),
    Result(
        result_id="alg3",
        shows="Algorithm 3: placement (beyond the paper: how often)",
        how="random trials of 1, 2, 4 and 8 GPUs on 2 to 8 instances, each study placed 4 times",
        find=placement.find,
    ),
    Result(
        result_id="contradictions",
        shows="Numbers of the paper that contradict each other",
        how="its own numbers, put side by side",
        find=contradictions.find,
    ),
    Result(
        result_id="profiles",
        shows="Table 2: whether any scaling profile gives it",
        how="a linear program over all monotone profiles, the paper's plans, times and costs",
        find=residual.find,
    ),
    Result(
        result_id="table2",
        shows="Table 2: ResNet-101, simulated",
        how="static, naive and repaired Alg. 2, SHA(32, 1, 50, 3), profile D, which is fitted to "
        "these rows; savings under all profiles",
        runs=deadlines.runs,
        find=deadlines.find,
    ),
    Result(
        result_id="real",
        shows="Table 2: times and costs that were measured on EC2; naive elasticity was not run",
        how="the predictions of result table2 beside the measured columns",
        tolerance=0.0,
        runs=deadlines.runs,
        find=deadlines.real,
    ),
    Result(
        result_id="accuracy",
        shows=f"Table 2: accuracy, {deadlines.accuracies()}",
        how="not computed",
        missing="ResNet-101 would have to be trained on CIFAR-10; "
        "there is no data set here, and no GPU is used",
    ),
    Result(
        result_id="table3",
        shows="Table 3: the plan of 20 min",
        how="the exact plan under profile E, which is fitted to this plan; cost of ours over Table "
        "3's in the same time",
        runs=schedule.runs,
        find=schedule.find,
    ),
    Result(
        result_id="table4",
        shows="Table 4: three models",
        how="static over elastic; two models have neither stages nor profile: the ratios of A to E "
        "by deadline",
        runs=models.runs,
        find=models.find,
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
