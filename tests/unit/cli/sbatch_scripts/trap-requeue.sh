#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --signal=B:USR1@300
#SBATCH --open-mode=append
#SBATCH --requeue

requeue_job() {
    echo "time is up"
    scontrol requeue $SLURM_JOB_ID
}
trap requeue_job USR1

module load pytorch
python train.py --resume auto &
wait
