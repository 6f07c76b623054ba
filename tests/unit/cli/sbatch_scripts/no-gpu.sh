#!/bin/bash
#SBATCH -J small-net -t 30
#SBATCH -c 4

python train.py
