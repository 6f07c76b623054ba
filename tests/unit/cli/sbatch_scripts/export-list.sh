#!/bin/bash
#SBATCH --gpus=2
#SBATCH --ntasks=2
#SBATCH --export=NONE,MODE=fast,SCRATCH
#SBATCH --wait
#SBATCH --hold

unset DISPLAY
ulimit -n 4096
WANDB_MODE=offline srun --export=ALL,EXTRA=1 python train_ddp.py
