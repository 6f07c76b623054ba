#!/bin/bash
##SBATCH --nodes=9
# SBATCH --nodes=8
#SBATCH --nodes=two --gpu-typo=1
#SBATCH --part=gpu # a comment
#SBATCH --mail=END
#SBATCH --exclusive=user --oversubscribe
#SBATCH --gres=gpu:a100:2,lscratch:100 -J "two words"
#SBATCH --gres-flags=enforce-binding extra
#SBATCH --array=9-1 --time

export PATH=$HOME/bin:$PATH LANG=C
#SBATCH --nodes=3
python train.py ~/data $1 $UNSET
