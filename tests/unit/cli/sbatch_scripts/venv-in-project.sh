#!/usr/bin/env bash
#SBATCH --account=proj0042
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=v100:1
#SBATCH --time=1-00:00:00
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=ada@example.org

cd $SLURM_SUBMIT_DIR
source venv/bin/activate
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK

srun python -u train.py --batch-size 64 --lr 1e-3
