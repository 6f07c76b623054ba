#!/bin/bash
#SBATCH --gres=gpu:1
PYTHON=$(which python3)
$PYTHON train.py
