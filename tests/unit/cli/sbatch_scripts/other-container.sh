#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4

srun shifter --image=nersc/pytorch:24.06 --module=gpu python train_ddp.py
