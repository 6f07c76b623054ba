#!/bin/bash
#SBATCH --gpus-per-node=1

conda run -n torch --no-capture-output python train.py
