#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:4
#SBATCH --ntasks-per-node=4

srun python fit_lightning.py --num_nodes $SLURM_NNODES --devices 4
