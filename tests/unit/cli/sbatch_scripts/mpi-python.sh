#!/bin/bash
#SBATCH -N 4
#SBATCH -n 4

module load mpi4py/4.0
mpiexec -n 4 python heat_mpi.py --steps 1000
