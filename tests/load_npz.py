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
# Of a map of the three axes: x, y, z and xx, xy, xz, yy, yz, zz.
has_axes = "axes" in arrays
check(has_axes == ("axes_covariance" in arrays), f"expected axes and their covariance, found only one of them: {sorted(arrays)}")
if has_axes:
    axes, covariance = arrays["axes"], arrays["axes_covariance"]
    check(axes.dtype == covariance.dtype == np.float64, f"expected axes as float64, found {axes.dtype} and {covariance.dtype}")
    check(axes.shape == (3, *mean.shape) and covariance.shape == (6, *mean.shape), f"shapes {axes.shape}, {covariance.shape}")
    for values in (*axes, *covariance):
        check(np.array_equal(np.isnan(values), np.isnan(mean)), "strength and axes are unknown in different cells")
    known_axes = axes[:, np.isfinite(mean)]
    matrices = covariance[[0, 1, 2, 1, 3, 4, 2, 4, 5]][:, np.isfinite(mean)].T.reshape(-1, 3, 3)
    check(np.linalg.eigvalsh(matrices).min() > -1e-9 * matrices.max(), "a covariance of axes is not positive")
    # The strength follows from the axes, to second order.
    length = np.linalg.norm(known_axes, axis=0)
    direction = known_axes / length
    along = np.einsum("in,nij,jn->n", direction, matrices, direction)
    trace = np.trace(matrices, axis1=1, axis2=2)
    strength = length + np.minimum((trace - along) / (2 * length), np.sqrt(trace))
    for found, of_axes in ((mean, strength), (deviation, np.sqrt(along))):
        error = np.abs(found[np.isfinite(mean)] - of_axes).max()
        check(error < 1e-6, f"strength and axes differ by up to {error} microtesla")
has_iron = "hard_iron" in arrays
check(has_iron == ("hard_iron_sd" in arrays) and has_iron <= has_axes, f"a hard iron without its arrays: {sorted(arrays)}")
if has_iron:
    iron, iron_deviation = arrays["hard_iron"], arrays["hard_iron_sd"]
    check(iron.shape == iron_deviation.shape == (3,), f"expected a hard iron of 3, found {iron.shape}, {iron_deviation.shape}")
    check(np.isfinite(iron).all() and (iron_deviation > 0).all(), f"hard iron {iron} with the deviations {iron_deviation}")

names, values = arrays["hyperparameter_names"], arrays["hyperparameters"]
check(names.dtype.kind == "U" and names.shape == values.shape, f"{names.dtype} {names.shape} beside {values.shape}")

known = np.isfinite(mean).sum()
print(f"{mean.shape[0]} x {mean.shape[1]} cells, {known} known, mean {np.nanmin(mean):.1f} to {np.nanmax(mean):.1f} microtesla,")
print(f"{len(arrays['inducing_points'])} inducing points, {', '.join(f'{n} = {v:.4g}' for n, v in zip(names, values))}")
if has_iron:
    print("hard iron " + ", ".join(f"{h:.2f} +- {sd:.2f}" for h, sd in zip(iron, iron_deviation)) + " microtesla")
