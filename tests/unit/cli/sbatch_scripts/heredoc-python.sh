#!/bin/bash
#SBATCH --gres=gpu:1

python - <<END
import torch
print(torch.cuda.device_count())
END
