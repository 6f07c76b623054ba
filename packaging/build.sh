#!/usr/bin/env bash
# Build what is installed: sdist and wheel, a bundle for hosts without a network, packages of
# /opt/bftrainer with all Python dependencies. The same commit and interpreter give the same bytes.
set -euo pipefail
umask 022  # whatever the caller's
unset PYTHONPATH PYTHONHOME

kind="${1:-}" out="${2:-dist}"
[[ "$kind" =~ ^(dist|bundle|deb|rpm|all)$ ]] || { echo "usage: $0 dist|bundle|deb|rpm|all [DIRECTORY]" >&2; exit 2; }
wants() { [[ "$kind" = "$1" || "$kind" = all ]]; }
here="$(cd "$(dirname "$0")" && pwd)" root="$(cd "$(dirname "$0")/.." && pwd)"
python="$(readlink -f "${PYTHON:-/usr/bin/python3}")"
version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/bftrainer/__init__.py")"
mkdir -p "$out" && out="$(cd "$out" && pwd -P)"
# Who can write there can put another package in the place of ours.
if [[ -n "$(find "$out" -maxdepth 0 -perm -002 ! -perm -1000)" ]]; then
  echo "$0: everybody can write to $out; next: chmod o-w $out, or name another directory" >&2; exit 1
fi
work="$(mktemp -d)" && trap 'rm -rf "$work"' EXIT
stage="$work/stage" prefix=/opt/bftrainer
maintainer="${DEBFULLNAME:-bftrainer maintainers} <${DEBEMAIL:-maintainers@bftrainer.invalid}>"
export PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8
# The date of what is made: SOURCE_DATE_EPOCH, else that of the commit, else now.
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)}"
export SOURCE_DATE_EPOCH

# Archive below a directory, without what differs between two copies.
archive() {
  tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX,a-st \
    --mtime="@$SOURCE_DATE_EPOCH" --format=gnu -c "$2"
}
# Put files into a directory; who has planted a link of that name there is not obeyed.
give() { # directory, files
  [[ ! -L "$1" ]] || { echo "$0: $1 is a link; next: remove it" >&2; exit 1; }
  mkdir -p "$1" && cp --remove-destination "${@:2}" "$1"
}
# Modes of all that is staged: a directory's default ACL and group bit come before a umask.
tidy() { chmod -R u=rwX,go=rX,a-st "$stage"; }
quietly() { "$@" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }; }
# -I: no module of the working directory. PIP_OPTIONS, for example: --no-index --find-links /srv/wheels
into() { # environment, what
  # shellcheck disable=SC2086
  "$work/tools/bin/python" -I -m pip --python "$1/bin/python" install --quiet --no-compile \
    --disable-pip-version-check --root-user-action=ignore ${PIP_OPTIONS:-} --constraint "$root/constraints.txt" "${@:2}"
}

# From a copy: setuptools writes into the directory that it builds from.
mkdir "$work/source" "$work/sdist" "$work/dist"
tar -C "$root" --exclude=__pycache__ --mode=u=rwX,go=rX -c bftrainer docs lsf_adapters milp packaging \
  slurm_plugins trainers CHANGELOG.md LICENSE MANIFEST.in README.md constraints.txt pyproject.toml setup.cfg \
  | tar -C "$work/source" -x
"$python" -I -m venv "$work/tools"
into "$work/tools" build setuptools
quietly "$work/tools/bin/python" -I -m build --no-isolation --sdist --outdir "$work" "$work/source"
tar -C "$work/sdist" -xf "$work/bftrainer-$version.tar.gz"
archive "$work/sdist" "bftrainer-$version" | gzip -9n > "$work/dist/bftrainer-$version.tar.gz"
quietly "$work/tools/bin/python" -I -m build --no-isolation --wheel --outdir "$work/dist" "$work/sdist/bftrainer-$version"
wheel="$(echo "$work"/dist/*.whl)"

if wants dist; then
  give "$out" "$work"/dist/*
fi
if wants bundle; then
  name="$("$python" -I -c 'import sys, sysconfig
print(f"bftrainer-'"$version"'-py{sys.version_info[0]}{sys.version_info[1]}-{sysconfig.get_platform()}")')"
  mkdir -p "$work/$name/wheels"
  # shellcheck disable=SC2086
  "$work/tools/bin/python" -I -m pip download --quiet --disable-pip-version-check ${PIP_OPTIONS:-} \
    --only-binary :all: --constraint "$root/constraints.txt" --dest "$work/$name/wheels" "$wheel${EXTRAS:+[$EXTRAS]}"
  for one in "$work/$name"/wheels/*; do
    IFS=- read -r project release _ <<< "$(basename "$one")"
    echo "$project==$release --hash=sha256:$(sha256sum "$one" | cut -d' ' -f1)"
  done > "$work/$name/requirements.txt"
  cp -r "$work/source"/{docs,CHANGELOG.md,LICENSE} "$work/$name"
  cp "$here/install.sh" "$work/$name" && chmod 755 "$work/$name/install.sh"
  archive "$work" "$name" > "$work/$name.tar"
  give "$out" "$work/$name.tar"
fi
wants deb || wants rpm || exit 0

"$python" -I -m venv --without-pip "$stage$prefix"
into "$stage$prefix" "$wheel"
"$stage$prefix/bin/python" "$here/write_service.py" "$stage"
"$stage$prefix/bin/python" "$here/write_pages.py" "$stage" "$maintainer"

# What names the directory of the build: scripts, compiled modules, pip's records.
rm -f "$stage$prefix"/bin/[Aa]ctivate* "$stage$prefix"/lib/python*/site-packages/*.dist-info/direct_url.json
sed -i '/direct_url\.json,/d; s|^\([./]*/bin/[^,]*\),.*|\1,,|' "$stage$prefix"/lib/python*/site-packages/*.dist-info/RECORD
sed -i "1s|^#!.*/bin/python.*|#!$prefix/bin/python|" $(grep -lI '^#!' "$stage$prefix"/bin/*)
sed -i '/^command = /d' "$stage$prefix/pyvenv.cfg"
"$python" -I -m compileall -q -s "$stage" -p / "$stage$prefix/lib"
find "$stage" -type f -name '*.so*' -exec chmod a-x {} +

mkdir -p "$stage/usr/bin" "$stage/usr/share/doc/bftrainer"
for program in bftrainer bftrainer-slurm-hook bftrainer-testcluster; do
  ln -s "$prefix/bin/$program" "$stage/usr/bin/$program"
done
cp -r "$work/source/docs/." "$work/source/CHANGELOG.md" "$stage/usr/share/doc/bftrainer"
cp "$work/source/LICENSE" "$stage/usr/share/doc/bftrainer/copyright"
install -m 644 -D -t "$stage/usr/share/bftrainer/grafana" "$here"/grafana/*.json
install -m 644 -D -t "$stage/usr/share/bftrainer/prometheus" "$here/prometheus/bftrainer.rules.yml"

if wants rpm; then
  tidy
  rpmbuild -bb --quiet --define "_topdir $work/rpm" --define "_rpmdir $work/rpms" \
    --define "stage $stage" --define "bft_version $version" --define "bft_python $python" \
    --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" "$here/rpm/bftrainer.spec"
  for one in "$work"/rpms/*; do give "$out/$(basename "$one")" "$one"/*; done
fi
if wants deb; then
  mkdir -p "$stage/DEBIAN" "$stage/usr/share/lintian/overrides"
  install -m 644 "$here/debian/copyright" "$stage/usr/share/doc/bftrainer/copyright"
  install -m 644 "$here/debian/lintian-overrides" "$stage/usr/share/lintian/overrides/bftrainer"
  (cd "$stage" && find opt usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
  size_kb="$(find "$stage/opt" "$stage/usr" -type f -printf '%s\n' | awk '{ kb += int(($1 + 1023) / 1024) } END { print kb }')"
  sed -e "s|@VERSION@|$version|; s|@ARCH@|$(dpkg --print-architecture)|; s|@SIZE_KB@|$size_kb|" \
    -e "s|@PYTHON@|$(basename "$python")|; s|@MAINTAINER@|$maintainer|" "$here/debian/control.in" > "$stage/DEBIAN/control"
  install -m 755 "$here"/debian/{postinst,prerm,postrm} "$stage/DEBIAN"
  tidy
  mkdir "$work/debs"
  dpkg-deb --root-owner-group -z2 --build "$stage" "$work/debs"
  give "$out" "$work"/debs/*
fi
