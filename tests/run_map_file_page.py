"""Runs the Python of docs/map-file.md on a map: python3 tests/run_map_file_page.py OUT/map.magmap"""

from pathlib import Path
import re
import sys

if len(sys.argv) != 2:
    sys.exit(__doc__)

page = Path(__file__).resolve().parent.parent / "docs" / "map-file.md"
blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
if not blocks:
    sys.exit(f"expected Python in {page}, found none")
for block in blocks:
    exec(compile(block, str(page), "exec"), {})
