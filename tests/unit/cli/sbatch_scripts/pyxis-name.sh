#!/bin/bash
#SBATCH --gpus=1

srun --container-name=torch python train.py
