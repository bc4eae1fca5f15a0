#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what building, testing and the demo need and is not there yet (Debian and its relatives).
# Asks nothing; does nothing when all is there.
set -eu

packages="gcc g++ libc6-dev make pkg-config meson ninja-build clang libclang-rt-dev clang-format
python3 python3-pip binutils libhwloc-dev libpcre2-dev libxxhash-dev libxsmm-dev libcmocka-dev
liburing-dev libjemalloc-dev"

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: this is no Debian system; install what these packages hold: $packages" >&2
    exit 0
fi

missing=
for package in $packages; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: neither root nor sudo; have an administrator run: apt-get install$missing" >&2
        exit 1
    fi
    as_root="sudo"
fi

echo "setup: installing$missing"
$as_root apt-get -q update </dev/null
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install \
    $missing </dev/null
