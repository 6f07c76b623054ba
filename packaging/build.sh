#!/usr/bin/env bash
# Build a package: /opt/bftrainer with all Python dependencies, the service, links in /usr/bin.
# It runs on hosts with the interpreter that it is built with (PYTHON), and needs nothing else.
set -euo pipefail

kind="${1:-}" out="${2:-dist}"
[[ "$kind" =~ ^(deb|rpm|both)$ ]] || { echo "usage: $0 deb|rpm|both [DIRECTORY]" >&2; exit 2; }
here="$(cd "$(dirname "$0")" && pwd)" root="$(cd "$(dirname "$0")/.." && pwd)"
python="$(readlink -f "${PYTHON:-/usr/bin/python3}")"
version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/bftrainer/__init__.py")"
mkdir -p "$out" && out="$(cd "$out" && pwd)"
work="$(mktemp -d)" && trap 'rm -rf "$work"' EXIT
stage="$work/stage" prefix=/opt/bftrainer
maintainer="${DEBFULLNAME:-bftrainer maintainers} <${DEBEMAIL:-maintainers@bftrainer.invalid}>"
umask 022
# The date of what is generated: SOURCE_DATE_EPOCH, else that of the commit, else now.
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH

# From a copy: setuptools writes into the directory that it builds from.
mkdir "$work/source"
tar -C "$root" --exclude=__pycache__ -c bftrainer lsf_adapters milp slurm_plugins trainers \
  LICENSE README.md pyproject.toml setup.cfg | tar -C "$work/source" -x

# PIP_OPTIONS, for example: --no-index --find-links /srv/wheels
"$python" -m venv --without-pip "$stage$prefix"
# shellcheck disable=SC2086
${PIP:-"$python" -m pip} --python "$stage$prefix/bin/python" install --quiet --no-compile \
  --disable-pip-version-check --root-user-action=ignore ${PIP_OPTIONS:-} \
  --constraint "$root/constraints.txt" "$work/source"
"$stage$prefix/bin/python" "$here/write_service.py" "$stage"
"$stage$prefix/bin/python" "$here/write_pages.py" "$stage" "$maintainer"

# What names the directory of the build: scripts, compiled modules, pip's records.
rm -f "$stage$prefix"/bin/[Aa]ctivate* "$stage$prefix"/lib/python*/site-packages/*.dist-info/direct_url.json
sed -i "1s|^#!.*/bin/python.*|#!$prefix/bin/python|" $(grep -lI '^#!' "$stage$prefix"/bin/*)
sed -i '/^command = /d' "$stage$prefix/pyvenv.cfg"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +
"$python" -m compileall -q -s "$stage" -p / "$stage$prefix/lib"

mkdir -p "$stage/usr/bin" "$stage/usr/share/doc/bftrainer"
for program in bftrainer bftrainer-slurm-hook bftrainer-testcluster; do
  ln -s "$prefix/bin/$program" "$stage/usr/bin/$program"
done
cp -r "$root/docs/." "$root/CHANGELOG.md" "$stage/usr/share/doc/bftrainer"
cp "$root/LICENSE" "$stage/usr/share/doc/bftrainer/copyright"
install -m 644 -D -t "$stage/usr/share/bftrainer/grafana" "$here"/grafana/*.json
install -m 644 -D -t "$stage/usr/share/bftrainer/prometheus" "$here/prometheus/bftrainer.rules.yml"

if [ "$kind" != deb ]; then
  rpmbuild -bb --quiet --define "_topdir $work/rpm" --define "_rpmdir $out" \
    --define "stage $stage" --define "bft_version $version" --define "bft_python $python" \
    "$here/rpm/bftrainer.spec"
fi
if [ "$kind" != rpm ]; then
  mkdir "$stage/DEBIAN"
  sed -e "s|@VERSION@|$version|; s|@ARCH@|$(dpkg --print-architecture)|" \
    -e "s|@PYTHON@|$(basename "$python")|; s|@MAINTAINER@|$maintainer|" "$here/debian/control.in" > "$stage/DEBIAN/control"
  install -m 755 "$here/debian/postinst" "$here/debian/prerm" "$stage/DEBIAN"
  dpkg-deb --root-owner-group -z2 --build "$stage" "$out"
fi
