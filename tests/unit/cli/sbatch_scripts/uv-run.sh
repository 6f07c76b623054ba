#!/bin/bash
#SBATCH --gpus=1
#SBATCH --time=8:00:00
#SBATCH --chdir=/work/ada/segmentation

export UV_CACHE_DIR=$SCRATCH/uv
uv sync --frozen
uv run --no-sync python -m segmentation.train --config configs/base.toml
