#!/bin/bash
#SBATCH --gpus=1

uv run --with torch train.py
