"""``python -m slurm_plugins.hook`` is ``bftrainer-slurm-hook``."""

from slurm_plugins.hook.main import main

if __name__ == "__main__":
    main()
