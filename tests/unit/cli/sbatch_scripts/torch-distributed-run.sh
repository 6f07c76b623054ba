#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=2
#SBATCH --ntasks-per-node=1

srun python -m torch.distributed.run --nnodes=2 --nproc-per-node=2 -m project.train --config base.yaml
