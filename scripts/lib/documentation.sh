#!/usr/bin/env bash
# Lays out the documentation for a package, with everything that its pages link to:
# documentation.sh DIRECTORY
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$1
put() { install -D -m 0644 "$1" "$target/$1"; }
for page in README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE; do put "$page"; done
find docs adapters conformance examples packaging -type f -not -path "*/[._]*/*" -not -name "*.pyc" |
    while read -r file; do put "$file"; done
python3 scripts/lib/links.py "$target"
