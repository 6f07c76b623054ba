#!/bin/sh
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=4
#SBATCH --constraint="skylake|cascade"
#SBATCH --time=3-12

srun python train_ddp.py --backend gloo
