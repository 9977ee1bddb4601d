"""Every crate that we build with says that it builds with the Rust that we say we need.

Where one needs more, it is named: take an older version of it, or raise rust-version in Cargo.toml.
Our own code is looked at by clippy (incompatible_msrv). In the top directory of the repository.
"""

import json
import subprocess
import sys
import tomllib


def version(text):
    """`1.88` is the same as `1.88.0`."""
    return tuple(int(part) for part in (text + ".0.0").split(".")[:3])


with open("Cargo.toml", "rb") as file:
    ours = tomllib.load(file)["workspace"]["package"]["rust-version"]
host = subprocess.run(["rustc", "--print", "host-tuple"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host]
metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
built = {node["id"] for node in metadata["resolve"]["nodes"]}
newer = [
    f"{package['name']} {package['version']} needs Rust {package['rust_version']}, and Cargo.toml says {ours}"
    for package in metadata["packages"]
    if package["id"] in built and version(package["rust_version"] or "1.0") > version(ours)
]
print("\n".join(sorted(newer)), end="\n" if newer else "")
sys.exit(1 if newer else 0)
