#!/bin/bash
#SBATCH -N2-8 --ntasks-per-node=1 --gres=gpu:1
#SBATCH --signal=B:USR1@120
#SBATCH --requeue

srun -l --kill-on-bad-exit=1 python train_ddp.py
