#!/bin/bash
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=128
#SBATCH --time=24:00:00

module load GROMACS
srun gmx_mpi mdrun -deffnm md -maxh 23.5
