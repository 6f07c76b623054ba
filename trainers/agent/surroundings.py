"""What of a pilot's environment is not true of the trainers that run in it.

A batch system starts a pilot as the only task of a job of its own, and says so: rank 0 of 1. Its
launcher may say so, too. Libraries look there for ranks and sizes (torchvision's references,
Lightning, Accelerate, srun), and would take every worker for the first of a training that has no
other. So nothing that an agent starts gets these variables; what a worker needs it is told by its
runtime. A trainer's size changes while its workers live, so that no value would stay true. What
describes the job remains (``SLURM_JOB_ID``, the nodes, CPUs and devices). Called by the agent
before it starts anything.
"""

from __future__ import annotations

from collections.abc import MutableMapping

# The hash seed of all interpreters, so that sets of strings have the same order on all workers. One
# for all trainers: warm templates, which have it from their start, are shared.
HASH_SEED = ("PYTHONHASHSEED", "0")
_SLURM = ("STEP", "GTID", "SRUN_", "PMI", "LAUNCH_NODE")
_SLURM_NAMES = (
    *("PROCID", "NODEID", "LOCALID", "NTASKS", "NPROCS", "NNODES", "JOB_NUM_NODES"),
    *("TASK_PID", "DISTRIBUTION", "NTASKS_PER_NODE", "RESTART_COUNT"),
    "JWT",  # the credential with which it was submitted; Slurm leaves it out from 26.05
)
_NAMES = frozenset(
    {
        *(f"SLURM_{name}" for name in _SLURM_NAMES),
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
        "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPI_RANKID", "MPI_NRANKS", "FLUX_TASK_RANK",
        "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES", "LSF_PM_TASKID",
    }
)  # fmt: skip
# Settings of the site's MPI stay: OMPI_MCA_..., PMIX_MCA_..., but those for one process.
_PREFIXES = (
    *(f"SLURM_{name}" for name in _SLURM),
    *("OMPI_", "PMI_", "PMIX_", "PRTE_", "MV2_COMM_WORLD_", "JSM_", "PALS_", "TORCHELASTIC_"),
)
_SETTINGS = ("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
_OF_PROCESS = ("OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_MCA_initial_wdir", "OMPI_MCA_shmem_RUNTIME")


def is_of_pilot(name: str) -> bool:
    """Return whether a variable says what is true of the pilot alone."""
    if name.startswith(_SETTINGS):
        return name.startswith(_OF_PROCESS)
    return name in _NAMES or name.startswith(_PREFIXES)


def leave_pilot(environ: MutableMapping[str, str]) -> None:
    """Remove what is true of the pilot alone; set what all interpreters have in common."""
    for name in list(environ):
        if is_of_pilot(name):
            del environ[name]
    name, value = HASH_SEED
    environ[name] = value
