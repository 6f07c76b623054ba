#!/usr/bin/env bash
# Install the Debian packages of the one-host Slurm; nothing to do when they are there.
set -euo pipefail
packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2)
if command -v slurmctld slurmd sinfo munged ip >/dev/null; then
  exit 0
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "error BFT-1290: installing ${packages[*]} needs root." >&2
    echo "next: run as root: apt-get install -y --no-install-recommends ${packages[*]}" >&2
    exit 5
  fi
  sudo=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
