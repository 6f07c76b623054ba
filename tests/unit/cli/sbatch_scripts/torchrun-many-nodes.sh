#!/bin/bash
#SBATCH --job-name=resnet50
#SBATCH --account=proj0042
#SBATCH --partition=booster
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=48
#SBATCH --time=24:00:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --error=logs/%x_%j.err

# The rendezvous is on the first node.
nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )
head_node=${nodes[0]}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29500
export NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME=ib0
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK

module load Stages/2025 GCC PyTorch

echo "master is $MASTER_ADDR"

srun --cpu-bind=none torchrun \
    --nnodes $SLURM_NNODES \
    --nproc_per_node 4 \
    --rdzv_id $RANDOM \
    --rdzv_backend c10d \
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT \
    train_ddp.py --data $SCRATCH/imagenet --epochs 90
