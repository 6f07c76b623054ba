"""lsid and bparams: the release of LSF and its parameters."""

from __future__ import annotations

from lsf_adapters.testcluster import arguments
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.config import CLUSTER, MASTER, LsfConfig
from lsf_adapters.testcluster.request import Answer, Request

BANNERS = {
    "ibm": (
        "IBM Spectrum LSF Standard 10.1.0.13, Apr 15 2022\n"
        "Copyright International Business Machines Corp. 1992, 2016.\n"
        "US Government Users Restricted Rights - Use, duplication or disclosure restricted by "
        "GSA ADP Schedule Contract with IBM Corp."
    ),
    "volclava": "volclava project 2.2, Nov 22 2026",
}
"""What lsid prints first."""


def lsid(batch: Batch, _: Request) -> Answer:
    """Answer lsid."""
    banner = BANNERS[batch.config.dialect]
    names = f"My cluster name is {CLUSTER}\nMy master name is {MASTER}\n"
    return Answer(out=f"{banner}\n\n{names}")


def bparams(batch: Batch, request: Request) -> Answer:
    """Answer bparams."""
    config = batch.config
    flags = set("lhV")
    cycle = "Job Dispatch Interval"
    if config.is_ibm:
        flags |= {"a", "json"}
        cycle = "MBD_SLEEP_TIME used for calculations"
    usage = "Usage: bparams [options]\n"
    options = arguments.read(request.argv, flags=flags, valued=(), usage=usage)
    default = next((queue.name for queue in config.all_queues if queue.is_default), "normal")
    profile = config.profile
    if options.flags & {"l", "a"}:
        return Answer(out=_long(config, default))
    return Answer(
        out=(
            f"Default Queues:  {default}\n"
            f"{cycle}:  {_whole(profile.mbd_sleep_s)} seconds\n"
            f"Job Checking Interval:  {_whole(profile.sbd_sleep_s)} seconds\n"
            "Job Accepting Interval:  0 seconds\n"
        )
    )


def _whole(seconds: float) -> int:
    return max(1, round(seconds))


def _long(config: LsfConfig, default: str) -> str:
    profile, parameters = config.profile, config.parameters
    entries: list[tuple[str, str, object]] = [
        ("System default queues for automatic queue selection:", "DEFAULT_QUEUE", default),
        (
            "The interval for dispatching jobs by master batch daemon:",
            "MBD_SLEEP_TIME",
            f"{_whole(profile.mbd_sleep_s)} (seconds)",
        ),
        (
            "The interval for checking jobs by slave batch daemon:",
            "SBD_SLEEP_TIME",
            f"{_whole(profile.sbd_sleep_s)} (seconds)",
        ),
        (
            "The interval for a host to accept two batch jobs:",
            "JOB_ACCEPT_INTERVAL",
            "0 (* MBD_SLEEP_TIME)",
        ),
        (
            "The amount of time during which finished jobs are kept in core:",
            "CLEAN_PERIOD",
            f"{_whole(profile.clean_period_s)} (seconds)",
        ),
        (
            "The maximum number of finished jobs that can be stored in current events file:",
            "MAX_JOB_NUM",
            parameters.max_job_num,
        ),
        ("The default project assigned to jobs.", "DEFAULT_PROJECT", "default"),
        (
            "The interval to terminate a job.",
            "JOB_TERMINATE_INTERVAL",
            f"{_whole(profile.terminate_interval_s)} ",
        ),
        ("The maximum number of jobs in a job array.", "MAX_JOB_ARRAY_SIZE", 1000),
    ]
    if config.is_ibm:
        entries += _ibm_entries(config)
    return "\n" + "\n".join(f"{text}\n    {key} = {value}\n" for text, key, value in entries)


def _ibm_entries(config: LsfConfig) -> list[tuple[str, str, object]]:
    parameters = config.parameters
    preemption_limit: object = parameters.max_job_preempt
    if preemption_limit is None:
        preemption_limit = "unlimited"
    has_planner = "Y" if parameters.allocation_planner else "N"
    has_delay = "N" if config.profile.new_job_sched_delay_s is None else "Y"
    return [
        ("Type of preemptable jobs:", "PREEMPT_JOBTYPE", " ".join(parameters.preempt_jobtype)),
        ("Grace period before preemption:", "PREEMPT_DELAY", f"{parameters.preempt_delay_s:g}"),
        ("How often a job may be preempted:", "MAX_JOB_PREEMPT", preemption_limit),
        ("Scheduler plans future allocations:", "ALLOCATION_PLANNER", has_planner),
        ("Schedule delay of a new job:", "NEWJOB_REFRESH", has_delay),
    ]
