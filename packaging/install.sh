#!/bin/sh
# Install this bundle into a directory of its own, without a network: ./install.sh /opt/bftrainer
set -e
umask 022  # whatever the caller's: others run what is installed and write none of it
here="$(cd "$(dirname "$0")" && pwd)"
me="$(id -u)" root="$(stat -c %u /)"  # 65534 in a namespace of users
refuse() { echo "install.sh: $1" >&2; exit 1; }
# Who could change a file there, or put another directory in its place, would be obeyed by all users.
check() { # directory, options of find
  bad="$(find "$@" \( ! -user "$me" ! -user "$root" -o ! -type l -perm -002 ! -perm -1000 \) | head -n 1)"
  [ -z "$bad" ] || refuse "others own $bad or can write to it; next: name another directory, or remove it"
}

target="${1:?usage: install.sh DIRECTORY}"
case "$target" in /*) ;; *) target="$PWD/$target" ;; esac
mkdir -p "$(dirname "$target")"
[ ! -L "$target" ] || refuse "$target is a link; next: name the directory itself"
place="$(cd -P "$(dirname "$target")" && pwd -P)"
[ -d "$target" ] || mkdir "$target"
check "$target"
while :; do
  check "$place" -maxdepth 0
  [ "$place" != / ] || break
  place="$(dirname "$place")"
done

# -I: no module of the working directory or of PYTHONPATH.
"${PYTHON:-python3}" -I -m venv "$target"
"$target/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-index \
  --find-links "$here/wheels" --require-hashes --requirement "$here/requirements.txt"
