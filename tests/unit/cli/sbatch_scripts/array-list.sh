#!/bin/bash
#SBATCH --array=0-2
#SBATCH --gres=gpu:1

RATES=(0.1 0.01 0.001)
LR=${RATES[$SLURM_ARRAY_TASK_ID]}
python train.py --lr $LR
