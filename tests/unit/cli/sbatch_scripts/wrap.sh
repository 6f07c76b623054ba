#!/bin/bash
sbatch --gres=gpu:1 --time=1:00:00 --wrap "python train.py --lr 0.1"
