#!/bin/bash
#SBATCH --gres=gpu:1

source env/bin/activate
cd code/model && python -W ignore train.py --out ../out
