#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1

NAME=torch
NAME=${NAME}-2.8
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    export NCCL_ALGO=Ring
fi
if [ -z "$MASTER_ADDR" ]; then
    export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
fi
source ~/envs/$NAME/bin/activate
pushd data
popd
srun python train_ddp.py
