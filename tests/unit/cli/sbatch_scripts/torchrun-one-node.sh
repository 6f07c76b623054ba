#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=06:00:00

source /opt/env/bin/activate
export OMP_NUM_THREADS=8
torchrun --standalone --nproc_per_node=4 train_ddp.py --epochs 90 --batch-size 256
