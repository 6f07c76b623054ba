#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:4

srun bash run_training.sh --lr 0.1
