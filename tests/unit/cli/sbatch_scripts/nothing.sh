#!/bin/bash
#SBATCH --time=5
hostname
sleep 60
