#!/bin/bash
#BSUB -n 4
#BSUB -q gpu
python train.py
