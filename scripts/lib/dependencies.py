"""What the program is made of: a list of its crates as CycloneDX, and their licences.

dependencies.py TARGET SBOM.json LICENCES.txt, in the top directory of the repository.
"""

import json
import pathlib
import subprocess
import sys
import tomllib

target, sbom, licences = sys.argv[1:]
command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
lock = tomllib.loads(pathlib.Path("Cargo.lock").read_text())
checksums = {(it["name"], it["version"]): it.get("checksum") for it in lock["package"]}

# The crates that are linked into the program, without those that only build or test it.
program = next(id for id, package in packages.items() if package["name"] == "delayline-cli")
linked, next_ones = set(), [program]
while next_ones:
    one = next_ones.pop()
    # Macros run in the compiler.
    if one in linked or any("proc-macro" in made["kind"] for made in packages[one]["targets"]):
        continue
    linked.add(one)
    for dependency in nodes[one]["deps"]:
        if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
            next_ones.append(dependency["pkg"])


def order(id):
    return (packages[id]["name"], packages[id]["version"])


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


components, texts, missing = [], [], []
for id in sorted(linked - {program}, key=order):
    package = packages[id]
    name, version = package["name"], package["version"]
    component = {"type": "library", "name": name, "version": version, "bom-ref": purl(package), "purl": purl(package)}
    if package["license"]:
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksums.get((name, version)):
        component["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    components.append(component)
    if package["source"] is None:
        continue
    directory = pathlib.Path(package["manifest_path"]).parent
    found = [
        path
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"))
    ]
    texts.append(f"{'=' * 78}\n{name} {version}: {package['license'] or 'see below'}\n{'=' * 78}\n")
    if not found:
        missing.append(f"{name} {version}")
        texts.append(f"The package has no file with its licence. {package['repository'] or ''}\n")
    for path in found:
        texts.append(path.read_text(errors="replace").rstrip() + "\n")

main = packages[program]
bom = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {
        "component": {
            "type": "application",
            "name": "delayline",
            "version": main["version"],
            "bom-ref": purl(main),
            "licenses": [{"expression": main["license"]}],
        },
        "properties": [{"name": "target", "value": target}],
    },
    "components": components,
    "dependencies": [
        {
            "ref": purl(packages[id]),
            "dependsOn": sorted(purl(packages[it["pkg"]]) for it in nodes[id]["deps"] if it["pkg"] in linked),
        }
        for id in sorted(linked, key=order)
    ],
}
pathlib.Path(sbom).write_text(json.dumps(bom, indent=1) + "\n")
pathlib.Path(licences).write_text("\n".join(texts))
print(f"{len(components)} crates; {len(missing)} without a licence file: {', '.join(missing) or 'none'}")
