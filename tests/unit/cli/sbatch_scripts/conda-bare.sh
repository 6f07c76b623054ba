#!/bin/bash
#SBATCH --gres=gpu:a40:2
#SBATCH --ntasks-per-node=2

conda activate torch-env
srun python train_ddp.py
