#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus=8
#SBATCH --exclusive

srun --container-image=nvcr.io#nvidia/pytorch:24.05-py3 --container-mounts=/data:/data \
    python train_ddp.py
