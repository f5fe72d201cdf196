"""Checks that numpy loads a map.npz as its documentation says: python3 tests/load_npz.py OUT/map.npz"""

import sys

import numpy as np


def check(condition, message):
    if not condition:
        sys.exit(f"{sys.argv[1]}: {message}")


if len(sys.argv) != 2:
    sys.exit(__doc__)

with np.load(sys.argv[1], allow_pickle=False) as archive:
    arrays = dict(archive)

expected = {"mean", "standard_deviation", "origin", "resolution", "x", "y", "inducing_points", "path", "hyperparameters"}
missing = (expected | {"hyperparameter_names"}) - arrays.keys()
check(not missing, f"expected the arrays {sorted(missing)}, found only {sorted(arrays)}")
for name in expected:
    check(arrays[name].dtype == np.float64, f"expected {name} as float64, found {arrays[name].dtype}")

mean, deviation = arrays["mean"], arrays["standard_deviation"]
x, y, origin, resolution = arrays["x"], arrays["y"], arrays["origin"], arrays["resolution"]
check(mean.shape == deviation.shape == (len(y), len(x)), f"shapes {mean.shape}, {deviation.shape}, {y.shape}, {x.shape}")
check(origin.shape == (2,) and resolution.shape == (), f"shapes {origin.shape} and {resolution.shape}")
check(np.array_equal(np.isnan(mean), np.isnan(deviation)), "mean and standard deviation are unknown in different cells")
check(np.nanmin(deviation) >= 0, "a standard deviation is negative")
for centres, start in ((x, origin[0]), (y, origin[1])):
    places = start + (np.arange(len(centres)) + 0.5) * resolution
    check(np.allclose(centres, places, rtol=0, atol=1e-9), "cell centres do not follow from origin and resolution")

for name in ("inducing_points", "path"):
    check(arrays[name].ndim == 2 and arrays[name].shape[1] == 2, f"expected {name} with two columns, found {arrays[name].shape}")
names, values = arrays["hyperparameter_names"], arrays["hyperparameters"]
check(names.dtype.kind == "U" and names.shape == values.shape, f"{names.dtype} {names.shape} beside {values.shape}")

known = np.isfinite(mean).sum()
print(f"{mean.shape[0]} x {mean.shape[1]} cells, {known} known, mean {np.nanmin(mean):.1f} to {np.nanmax(mean):.1f} microtesla,")
print(f"{len(arrays['inducing_points'])} inducing points, {', '.join(f'{n} = {v:.4g}' for n, v in zip(names, values))}")
