#!/bin/bash
#SBATCH --gres=gpu:1

if [ -n "$CONDA_EXE" ]; then
    source ~/miniconda3/bin/activate torch
else
    module load python
fi
[ -f ~/.tokens ] && source ~/.tokens

if [ -f last.ckpt ]; then
    python train.py --resume last.ckpt
else
    python train.py
fi
