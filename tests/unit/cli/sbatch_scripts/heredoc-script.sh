#!/bin/bash
#SBATCH --gres=gpu:1

cat > settings.json <<END
{"lr": 0.1, "note": "it's a test"}
END
python train.py --settings settings.json

cat <<'END'
#SBATCH --nodes=3
done "
END
