#!/bin/bash
#SBATCH --gres=gpu:1

if [ "$USER" = ada ]; then
    ENVIRONMENT=torch-new
else
    ENVIRONMENT=torch
fi
if [ -d old ]; then COLOR=red; fi
module load python || exit 1
[ -e ~/.tokens ] && . ~/.tokens
source ~/envs/$ENVIRONMENT/bin/activate
export CACHE=$(python -c 'import site; print(site.USER_BASE)')
export LD_LIBRARY_PATH="$HOME/lib:$LD_LIBRARY_PATH"
python train.py "$@"
