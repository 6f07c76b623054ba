#!/bin/bash
#SBATCH --gres=gpu:1

eval "$(/opt/conda/bin/conda 'shell.bash' 'hook' 2> /dev/null)"
conda activate torch
CMD="python train.py --lr 0.1"
echo $CMD
eval $CMD
