#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --tmp=200G

set -euo pipefail
module load Python/3.11.5-GCCcore-13.2.0
mkdir -p $TMPDIR/data
tar -xf $SCRATCH/data.tar -C $TMPDIR/data
pip install --no-index -r requirements.txt
python prepare_data.py --out data/
python train.py --data data/ > train.log 2>&1
python evaluate.py --checkpoint last.pt
cp -r results $HOME/
echo finished at $(date)
