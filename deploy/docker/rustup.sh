#!/bin/sh
# Installs Rust by a rustup of known content; the arguments are rustup-init's.
#
# rustup checks what it downloads by the hashes of the release that it asks for.
set -eu
version=1.28.2
sha256=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c
init=$(mktemp -d)/rustup-init
curl --proto '=https' --tlsv1.2 --silent --show-error --fail --output "$init" \
    "https://static.rust-lang.org/rustup/archive/$version/x86_64-unknown-linux-gnu/rustup-init"
echo "$sha256  $init" | sha256sum --check --strict --quiet
chmod 700 "$init"
"$init" -y "$@"
