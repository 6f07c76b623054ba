#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:4

deepspeed --num_gpus 4 pretrain.py --deepspeed ds_config.json
