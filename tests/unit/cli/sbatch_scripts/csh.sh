#!/bin/csh
#SBATCH --gres=gpu:1
setenv OMP_NUM_THREADS 4
python train.py
