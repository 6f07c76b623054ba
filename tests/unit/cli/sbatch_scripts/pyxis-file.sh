#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
#SBATCH --container-image=/images/pytorch.sqsh

DATA=/scratch/ada/imagenet
srun --container-image=/images/pytorch.sqsh --container-mounts=$DATA:/data:ro,/home/ada:/home/ada \
    --container-workdir=/home/ada --no-container-mount-home python -u train_ddp.py --data /data
