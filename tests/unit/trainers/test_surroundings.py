"""What of a pilot's environment its trainers get."""

from __future__ import annotations

import pytest

from trainers.agent.surroundings import is_of_pilot, leave_pilot

# As a batch script of Slurm 22.05 finds them (recorded), with the job's sbatch --export=NONE.
BATCH_SCRIPT = {
    "HOME": "/root", "SLURM_CLUSTER_NAME": "c", "SLURM_CONF": "/c/slurm.conf",
    "SLURM_CPUS_ON_NODE": "4", "SLURM_GTIDS": "0", "SLURM_JOBID": "2", "SLURM_JOB_GPUS": "0,1,2,3",
    "SLURM_JOB_ID": "2", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_PARTITION": "p", "SLURM_LOCALID": "0", "SLURM_NNODES": "1", "SLURM_NODEID": "0",
    "SLURM_NODELIST": "n1", "SLURM_NPROCS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0",
    "SLURM_SUBMIT_DIR": "/", "SLURM_TASKS_PER_NODE": "1", "SLURM_TASK_PID": "77",
}  # fmt: skip


def test_what_describes_the_job_stays_and_what_ranks_it_goes() -> None:
    left = dict(BATCH_SCRIPT)
    leave_pilot(left)
    assert BATCH_SCRIPT.keys() - left.keys() == {
        *("SLURM_GTIDS", "SLURM_JOB_NUM_NODES", "SLURM_LOCALID", "SLURM_NNODES", "SLURM_NODEID"),
        *("SLURM_NPROCS", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_TASK_PID"),
    }
    assert left.items() - BATCH_SCRIPT.items() == {("PYTHONHASHSEED", "0")}


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST", "SLURM_SRUN_COMM_HOST"),
        *("SLURM_PMIX_MAPPING_SERV", "SLURM_LAUNCH_NODE_IPADDR", "OMPI_COMM_WORLD_RANK"),
        *("OMPI_UNIVERSE_SIZE", "OMPI_MCA_orte_ess_num_procs", "PMI_RANK", "PMI_FD", "PMIX_RANK"),
        *("PMIX_NAMESPACE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_RANK", "RANK", "WORLD_SIZE"),
        *("LOCAL_RANK", "TORCHELASTIC_RUN_ID", "MPI_LOCALRANKID", "SLURM_JWT"),
    ],
)
def test_launchers_of_the_pilot_rank_nobody(name: str) -> None:
    assert is_of_pilot(name)


@pytest.mark.parametrize(
    "name",
    [
        *("OMPI_MCA_btl", "PMIX_MCA_gds", "SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_MPI_TYPE"),
        *("SLURM_TASKS_PER_NODE", "CUDA_VISIBLE_DEVICES", "LSB_JOBID", "MPICH_OFI_NIC", "BFT_RANK"),
    ],
)
def test_settings_of_the_site_and_of_the_job_stay(name: str) -> None:
    assert not is_of_pilot(name)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The `srun`")
def test_lightning_does_not_take_the_pilot_for_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.fabric.plugins.environments import SLURMEnvironment

    for name, value in BATCH_SCRIPT.items():
        monkeypatch.setenv(name, value)
    assert SLURMEnvironment.detect(), "else nothing is shown: there it would requeue the pilot"
    trainers = dict(BATCH_SCRIPT)
    leave_pilot(trainers)
    for name in BATCH_SCRIPT.keys() - trainers.keys():
        monkeypatch.delenv(name)
    assert not SLURMEnvironment.detect()
