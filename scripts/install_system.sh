#!/usr/bin/env bash
# Install Debian packages that are missing: "venv" for the virtual environment, "slurm" for the
# test clusters and the page, "packages" for the long tests (packages are built and tried, clocks are
# wrong) and those of manual pages and completions; "promtool", one program into /usr/local/bin.
# Nothing to do when they are there.
set -euo pipefail

case "${1:-}" in
venv)
  packages=(python3-venv)
  "${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null && exit 0
  ;;
slurm)
  # The database without its service: the test cluster starts its own (--accounting).
  packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
            slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
            iproute2 nftables # a cluster of several hosts, tests/hosts
            chromium chromium-driver) # the page, tests/integration/api/test_page_browser.py
  missing=0
  for program in munged slurmctld slurmd sbatch srun squeue scontrol \
      slurmdbd mariadbd mariadb-install-db my_print_defaults sacct sacctmgr \
      ip nft chromium chromedriver; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing=1
  done
  [ "$missing" -eq 0 ] && exit 0
  ;;
packages)
  packages=(rpm lintian environment-modules libfaketime mandoc zsh fish
            apache2-bin # the page behind a portal; a program, no service
            bubblewrap charliecloud debootstrap) # containers
  PATH="$PATH:/usr/sbin" type rpmbuild lintian modulecmd mandoc zsh fish apache2 \
    bwrap ch-run debootstrap >/dev/null 2>&1 \
    && compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null && exit 0
  ;;
promtool)
  packages=(prometheus)
  command -v promtool >/dev/null && exit 0
  ;;
*)
  echo "usage: $0 venv|slurm|packages|promtool" >&2
  exit 2
  ;;
esac

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "error BFT-1290: installing ${packages[*]} needs root." >&2
    echo "next: run as root: $0 $1" >&2
    exit 5
  fi
  sudo=(sudo)
fi
"${sudo[@]}" apt-get update -qq
if [ "$1" = promtool ]; then # the package, if installed, would start a server
  work="$(mktemp -d)" && trap 'rm -rf "$work"' EXIT
  (cd "$work" && apt-get download -qq prometheus 2>/dev/null)
  dpkg-deb --fsys-tarfile "$work"/prometheus_*.deb \
    | "${sudo[@]}" tar -x -C /usr/local --strip-components=2 --no-same-owner ./usr/bin/promtool
  exit 0
fi
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-remove --no-install-recommends "${packages[@]}" >/dev/null
