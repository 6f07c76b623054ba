#!/bin/bash
#SBATCH --gpus=2
#SBATCH --time=04:00:00
#SBATCH --container-image='nvcr.io#nvidia/pytorch:24.05-py3'
#SBATCH --container-mounts=/data:/data
#SBATCH --container-writable

python train_ddp.py
