#!/bin/bash
#SBATCH --array=0-9%4
#SBATCH --job-name=seeds
#SBATCH --gpus-per-node=1
#SBATCH --output=seeds_%A_%a.out

SEED=$SLURM_ARRAY_TASK_ID
source ~/envs/torch/bin/activate
python train.py --seed $SEED --out "runs/seed-${SLURM_ARRAY_TASK_ID}" --tag '{name}'
