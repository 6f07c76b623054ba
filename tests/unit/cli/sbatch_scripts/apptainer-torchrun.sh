#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=1

SIF=$HOME/images/pytorch_24.05.sif
export APPTAINERENV_NCCL_DEBUG=INFO
export MASTER_ADDR=$(scontrol show hostname $SLURM_NODELIST | head -1)
srun apptainer exec --nv --bind $SCRATCH:/data $SIF \
  bash -c 'torchrun --nnodes=$SLURM_NNODES --node_rank=$SLURM_PROCID --nproc_per_node=4 \
  --master_addr=$MASTER_ADDR train_ddp.py --data /data'
