"""Lists the relative links in the pages below a directory that lead nowhere: `links.py DIRECTORY`."""
import pathlib
import re
import sys

top = pathlib.Path(sys.argv[1])
pages = sorted(top.rglob("*.md"))
dead = []
for page in pages:
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s#]+)", text) + re.findall(r'(?:src|href)="([^"#]+)', text):
        if ":" not in link and not (page.parent / link).exists():
            dead.append(f"{page.relative_to(top)}: {link}")
if dead or not pages:
    sys.exit("\n".join(dead) or f"{top} has no pages")
