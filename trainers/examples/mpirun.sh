#!/bin/sh
# Any MPI's program as a trainer of runtime command: one process per node, resized by restart.
#
#     bftrainer submit --runtime command --launch first --nodes 1:4 -- ./mpirun.sh python heat.py
#
# MPIRUN is the launcher. MPIRUN_OPTIONS takes the place of --host, where the site's mpirun finds
# the nodes in another way (both by --export). It becomes mpirun, which passes signals on.
# shellcheck disable=SC2086 - options are several words
exec "${MPIRUN:-mpirun}" ${MPIRUN_OPTIONS---host "$BFT_NODES"} -np "$BFT_SIZE" "$@"
