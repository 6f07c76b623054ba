#!/bin/bash
#SBATCH --gpus=1
python train_tf.py
