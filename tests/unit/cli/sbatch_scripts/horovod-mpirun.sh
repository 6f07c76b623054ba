#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4

module load OpenMPI Horovod
mpirun -np 16 --bind-to none --map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH \
    -mca pml ob1 python train_horovod.py --epochs 5
