#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:2

CUDA_VISIBLE_DEVICES=0 python train.py --fold 0 &
CUDA_VISIBLE_DEVICES=1 python train.py --fold 1 &
wait
