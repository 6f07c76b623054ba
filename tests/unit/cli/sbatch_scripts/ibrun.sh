#!/bin/bash
#SBATCH -N 2
#SBATCH -n 2
#SBATCH -p gh
#SBATCH -A IRI00000
ml gcc cuda
source $WORK/env/bin/activate
ibrun -np 2 python3 train_ddp.py
