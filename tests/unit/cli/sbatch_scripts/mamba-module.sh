#!/bin/bash
#SBATCH -p gpu -G 1 -t 4:00:00

ml Mambaforge
mamba activate nlp
python3 finetune.py --model bert-base
