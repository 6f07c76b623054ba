#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:4
#SBATCH --ntasks-per-node=4
#SBATCH --mem=0
#SBATCH --time=0-02:00:00
#SBATCH --signal=SIGUSR1@90

source activate lightning
export NCCL_DEBUG=INFO
export PYTHONFAULTHANDLER=1

srun python3 fit_lightning.py --max_epochs 20
