#!/usr/bin/env bash
# Builds Horovod 0.28.1 from source against the torch of a virtual environment, with gloo
# and without MPI, and installs it there. Usage: scripts/build_horovod.sh [VENV]
# Needs cmake, a C++17 compiler and about 5 minutes on two cores. A wheel that was built
# once is kept in build/horovod and only installed the next time.
set -euo pipefail

VERSION=0.28.1
PATCHES=3 # count up with every change to the sources below: wheels are kept
VENV=$(realpath "${1:-.venv}")
WORK=$(realpath -m "${BUILD_DIR:-build/horovod}")
JOBS=${JOBS:-$(nproc)}
PIP=("$VENV/bin/python" -m pip --disable-pip-version-check -q)

for tool in cmake g++; do
    command -v "$tool" >/dev/null || {
        echo "$tool is missing; on Debian: apt-get install cmake g++" >&2
        exit 1
    }
done
torch=$("$VENV/bin/python" -c 'import torch; print(torch.__version__)') || {
    echo "$VENV has no torch; run make venv first" >&2
    exit 1
}

mkdir -p "$WORK"
wheels="$WORK/whl-$torch-patched-$PATCHES"
if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
    # setuptools 70 removed what this release's setup.py imports; the user's stays as it is.
    builder="$WORK/builder"
    [ -x "$builder/bin/python" ] || "$VENV/bin/python" -m venv --system-site-packages "$builder"
    site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    BUILD=("$builder/bin/python" -m pip --disable-pip-version-check -q)
    "${BUILD[@]}" install 'setuptools<70' wheel cffi cloudpickle psutil pyyaml packaging
    (
        cd "$WORK"
        rm -rf "horovod-$VERSION"
        [ -f "horovod-$VERSION.tar.gz" ] ||
            "${BUILD[@]}" download --no-deps --no-binary :all: --no-build-isolation "horovod==$VERSION"
        tar xf "horovod-$VERSION.tar.gz"
        # The headers of torch need C++17.
        sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' \
            "horovod-$VERSION/CMakeLists.txt" "horovod-$VERSION/horovod/torch/CMakeLists.txt"
        # A send that was queued when its connection failed is not told, nor is who receives a
        # message that was half read: a survivor of a lost member then waits for gloo's timeout,
        # 30 s. Tell them like all others.
        pair="horovod-$VERSION/third_party/gloo/gloo/transport/tcp/pair.cc"
        sed -i 's|^      op.buf->signalException(ex);$|&\n    }\n    if (NonOwningPtr<UnboundBuffer> ubuf{op.ubuf}) {\n      ubuf->signalException(ex);|' "$pair"
        sed -i 's|^  // Loop through posted send operations.$|  if (NonOwningPtr<UnboundBuffer> ubuf{rx_.ubuf}) {\n    ubuf->signalException(ex);\n  }\n\n&|' "$pair"
        grep -q 'ubuf{op.ubuf}' "$pair"
        grep -q 'ubuf{rx_.ubuf}' "$pair"
        cd "horovod-$VERSION"
        PYTHONPATH="$site" HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO HOROVOD_WITH_PYTORCH=1 \
            HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 \
            MAKEFLAGS="-j$JOBS" \
            "${BUILD[@]}" wheel --no-build-isolation --no-deps . -w "$wheels"
    )
fi
"${PIP[@]}" install cloudpickle psutil pyyaml packaging cffi
"${PIP[@]}" install --no-deps --force-reinstall "$wheels"/horovod-*.whl
"$VENV/bin/python" -c '
import horovod.torch as hvd
assert hvd.gloo_built(), "built without gloo"
print("Horovod", __import__("horovod").__version__, "with gloo")'
