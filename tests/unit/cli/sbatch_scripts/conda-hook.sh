#!/bin/bash -l
#SBATCH --time=12:00:00
#SBATCH --gpus=a100:1
#SBATCH --mem-per-gpu=60G
#SBATCH --mail-type=ALL

eval "$(conda shell.bash hook)"
conda activate vision

python train.py --data $SCRATCH/imagenet --workers 8
