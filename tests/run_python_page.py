"""Runs the Python of docs/python.md on a map: python3 tests/run_python_page.py OUT"""

from pathlib import Path
import re
import sys

import numpy as np

if len(sys.argv) != 2:
    sys.exit(__doc__)

page = Path(__file__).resolve().parent.parent / "docs" / "python.md"
blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
names = {}
exec(compile("".join(blocks), str(page), "exec"), names)

# At the centre of a cell, the query gives the value of the cell.
known = np.argwhere(np.isfinite(names["mean"][:-1, :-1]) & np.isfinite(names["mean"][1:, 1:]))
places = np.column_stack([names["x"][known[:, 1]], names["y"][known[:, 0]]])
found, expected = names["at"](names["mean"], places), names["mean"][tuple(known.T)]
usable = np.isfinite(found)
error = np.abs(found - expected)[usable].max()
if usable.mean() < 0.9 or error > 1e-6:
    sys.exit(f"expected the values of the cells, found up to {error} microtesla off in {usable.mean():.0%} of them")
beyond = names["at"](names["mean"], [[1e6, 0.0], [-1e6, 0.0]])
if np.isfinite(beyond).any():
    sys.exit(f"expected nothing beyond the grid, found {beyond}")
table = np.genfromtxt(Path(sys.argv[1]) / "map.csv", delimiter=",", names=True)
if len(table) != np.isfinite(names["mean"]).sum():
    sys.exit(f"expected a row for each known cell, found {len(table)}")
