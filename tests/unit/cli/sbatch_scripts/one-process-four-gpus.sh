#!/bin/bash
#SBATCH --gres=gpu:h100:4
#SBATCH --nodes=1
#SBATCH --mem=0

source /software/env.sh h100
python generate_train.py --device-map auto
