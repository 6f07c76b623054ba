#!/bin/bash
#SBATCH --job-name=sft
#SBATCH --nodes=1
#SBATCH --gres=gpu:4

accelerate launch --config_file=accelerate.yaml accelerated.py
