#!/usr/bin/env python3
#SBATCH --gres=gpu:1
import torch
print(torch.__version__)
