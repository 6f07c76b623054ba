#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus=1

apptainer exec --nv --env OMP_NUM_THREADS=8 /images/pytorch.sif python3 train.py
