#!/bin/bash
#SBATCH --gres=gpu:1

NAME=run-$(date +%F)
python train.py --name $NAME --files data/*.npz
