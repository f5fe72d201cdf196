"""Checks what magmap export wrote, csv and geotiff, against a map.npz: python3 tests/load_export.py EXPORT OUT/map.npz"""

from pathlib import Path
import sys

import numpy as np
import tifffile

if len(sys.argv) != 3:
    sys.exit(__doc__)

folder = Path(sys.argv[1])
with np.load(sys.argv[2], allow_pickle=False) as archive:
    arrays = dict(archive)


def check(condition, message):
    if not condition:
        sys.exit(f"{folder}: {message}")


x, y, resolution = arrays["x"], arrays["y"], arrays["resolution"]
bands = {"mean": arrays["mean"], "standard_deviation": arrays["standard_deviation"]}
known = np.isfinite(arrays["mean"])

table = np.genfromtxt(folder / "map.csv", delimiter=",", names=True)
columns = {"x_m": np.broadcast_to(x, known.shape), "y_m": np.broadcast_to(y[:, None], known.shape)}
columns |= {f"{name}_uT": values for name, values in bands.items()}
for axis, variance, mean in zip("xyz", (0, 3, 5), arrays.get("axes", [])):
    columns[f"b{axis}_uT"] = mean
    columns[f"b{axis}_standard_deviation_uT"] = np.sqrt(arrays["axes_covariance"][variance])
check(set(table.dtype.names) == columns.keys(), f"expected the columns {sorted(columns)}, found {table.dtype.names}")
check(len(table) == known.sum(), f"expected {known.sum()} rows, found {len(table)}")
for name, values in columns.items():
    error = np.abs(table[name] - values[known]).max()
    check(error < 5.1e-5, f"{name} differs by up to {error}")

with tifffile.TiffFile(folder / "map.tif") as file:
    page = file.pages[0]
    image, geo = page.asarray(), page.geotiff_tags
check(image.shape == (*known.shape, 2) and image.dtype == np.float32, f"found {image.shape} of {image.dtype}")
for band, (name, values) in enumerate(bands.items()):
    # The upper row comes first.
    check(np.array_equal(image[::-1, :, band], values.astype(np.float32), equal_nan=True), f"{name} differs in band {band + 1}")
corner = [0, 0, 0, x[0] - resolution / 2, y[-1] + resolution / 2, 0]
check(np.allclose(geo["ModelTiepoint"], corner, rtol=0, atol=1e-9), f"expected the corner {corner}, found {geo['ModelTiepoint']}")
check(np.allclose(geo["ModelPixelScale"], [resolution, resolution, 0]), f"cells of {geo['ModelPixelScale']}")
check(geo["GTRasterTypeGeoKey"] == 1 and geo["ProjLinearUnitsGeoKey"] == 9001, f"expected areas and metres, found {geo}")
print(f"{len(table)} rows of {', '.join(table.dtype.names)}; {image.shape[1]} x {image.shape[0]} cells of {geo['GTCitationGeoKey']}")
