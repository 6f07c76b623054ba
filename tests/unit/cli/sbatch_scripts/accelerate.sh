#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64

module load CUDA
. ~/miniforge3/etc/profile.d/conda.sh
conda activate hf
export HF_HOME=$SCRATCH/huggingface
export TOKENIZERS_PARALLELISM=false
accelerate launch --multi_gpu --num_processes 8 --mixed_precision bf16 finetune.py \
    --model_name_or_path meta/model --per_device_train_batch_size 4 \
    --output_dir out/$SLURM_JOB_NAME
