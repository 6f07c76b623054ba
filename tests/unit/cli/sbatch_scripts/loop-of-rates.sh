#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --time=48:00:00

module load anaconda3
source activate torch
for lr in 0.1 0.01 0.001; do
    for seed in 1 2 3; do
        python train.py --lr $lr --seed $seed
    done
done
