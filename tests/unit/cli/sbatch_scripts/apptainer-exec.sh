#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --account=project_465000001
#SBATCH --partition=small-g
#SBATCH --time=02:00:00

module load LUMI
export SINGULARITY_BIND=/scratch,/projappl
srun singularity exec --rocm -B /flash:/flash images/torch-rocm.sif python train.py --epochs 3
