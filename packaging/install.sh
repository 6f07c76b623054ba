#!/bin/sh
# Install this bundle into a directory of its own, without a network: ./install.sh /opt/bftrainer
set -e
here="$(cd "$(dirname "$0")" && pwd)"
"${PYTHON:-python3}" -m venv "${1:?usage: install.sh DIRECTORY}"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-index \
  --find-links "$here/wheels" --require-hashes --requirement "$here/requirements.txt"
