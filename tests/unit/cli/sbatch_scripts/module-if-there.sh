#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --nodelist=gpu01
#SBATCH --begin=now+1hour
#SBATCH --dependency=afterok:12345
#SBATCH --comment="second try"
#SBATCH --qos=long

# module load old
if [ "$USER" = ada ]; then
    module load cuda
fi
[ -f ~/.tokens ] && source ~/.tokens
numactl --interleave=all /opt/python/bin/python3.12 -X dev train.py "--name=two words" --glob '*.npz'
