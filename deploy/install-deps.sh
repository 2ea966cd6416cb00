#!/usr/bin/env bash
# Installs every Debian 12 package that Tandem is built with; with --tests also those of the tests.
set -euo pipefail
packages=(gcc cmake ninja-build pkg-config libc6-dev libnng-dev libmsgpack-dev libxxhash-dev libinih-dev libjansson-dev python3 python3-pip ca-certificates)
[ "${1:-}" = --tests ] && packages+=(libcmocka-dev python3-msgpack clang libclang-rt-14-dev)
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
