#!/bin/bash
#SBATCH -n 8
#SBATCH --gpus-per-task=1

horovodrun -np 8 --gloo python train_horovod.py
