"""Checks that a checkpoint is what docs/checkpoint.md says, by predicting a map from its arrays alone:

    pip install numpy
    python3 tests/load_checkpoint.py MAP_CHECKPOINT_NPZ MAP_NPZ      (both of the same map)
"""

import hashlib
import json
import sys
import tomllib
import zipfile

import numpy as np

ARRAYS = {
    "hyperparameters": ("H",),
    "mean": (),
    "baseline": ("O", 2),
    "inducing_points": ("M", "C"),
    "covariance_root": ("M", "M"),
    "triangle": ("M", "M"),
    "target": ("M",),
    "log_evidence": (),
    "extent": ("E", 2),
    "path": ("P", 3),
    "path_spacing": (),
}

# Those of a map of three axes alone; B is 0, or the 6 components of the bias.
BIAS = {"bias_mean": ("B",), "bias_covariance": ("B", "B")}

# Those of the dual model alone; S is M, or 0 where all observations are in memory.
MEMORY = {
    "memory_places": ("K", 2),
    "memory_targets": ("K",),
    "memory_sites": ("K", 2),
    "summary_triangle": ("S", "S"),
    "summary_target": ("S",),
    "summary_log_evidence": (),
}

# rho of the squared scaled distance, by the name of the kernel.
SHAPES = {
    "matern12": lambda s2: np.exp(-np.sqrt(s2)),
    "matern32": lambda s2: (1 + np.sqrt(3 * s2)) * np.exp(-np.sqrt(3 * s2)),
    "matern52": lambda s2: (1 + np.sqrt(5 * s2) + 5 / 3 * s2) * np.exp(-np.sqrt(5 * s2)),
    "squared_exponential": lambda s2: np.exp(-s2 / 2),
}


def check(condition, message):
    if not condition:
        sys.exit(f"{sys.argv[1]}: {message}")


def check_arrays(checkpoint, process):
    """Types, shapes and finite numbers."""
    has_memory = process == "dual_memory"
    check(has_memory == ("memory_places" in checkpoint), f"arrays {sorted(checkpoint)} of the process {process}")
    lengths = {"H": len(checkpoint["hyperparameters"]), "M": len(checkpoint["target"]), "P": len(checkpoint["path"])}
    lengths["E"] = 2 if lengths["M"] else 0
    # Outputs, and numbers per inducing point: those of a map of three axes are rows of x, y, z, kind and axis.
    lengths["O"], lengths["C"] = (3, 5) if process == "vector" else (1, 2)
    if has_memory:
        lengths["K"] = len(checkpoint["memory_targets"])
        lengths["S"] = lengths["M"] if len(checkpoint["summary_target"]) else 0
    lengths["B"] = len(checkpoint.get("bias_mean", ()))
    others = {"dual_memory": MEMORY, "vector": BIAS}.get(process, {})
    for name, shape in (ARRAYS | others).items():
        array = checkpoint[name]
        expected = tuple(lengths.get(length, length) for length in shape)
        check(array.shape == expected, f"expected {name} of shape {expected}, found {array.shape}")
        check(array.dtype == "<f8" and np.isfinite(array).all(), f"expected finite float64 in {name}, found {array.dtype}")
    for name in ("covariance_root", "triangle") + (("summary_triangle",) if has_memory else ()):
        check((np.triu(checkpoint[name], 1) == 0).all(), f"expected {name} to be lower triangular")


def check_checksum(path, checksum):
    digest = hashlib.sha256()
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        check(names[0] == "format.npy" and names[-1] == "checksum.npy", f"order of the arrays: {names}")
        check(archive.testzip() is None, "a CRC of the archive is wrong")
        check(all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist()), "an array is compressed")
        for name in names[:-1]:
            digest.update(name.encode())
            digest.update(archive.read(name))
    check(digest.hexdigest() == checksum, f"expected the checksum {checksum}, found {digest.hexdigest()}")


def predict(checkpoint, kernel, names, points):
    """Mean and standard deviation of the field strength at points (N x 2)."""
    values = dict(zip(names, checkpoint["hyperparameters"]))
    lengthscales = [values[name] for name in names if name.startswith("lengthscale")]
    inducing, root, triangle = (checkpoint[name] for name in ("inducing_points", "covariance_root", "triangle"))
    s2 = (((inducing[:, None] - points[None]) / lengthscales) ** 2).sum(axis=2)
    constant = values.get("constant", 0.0)
    features = np.linalg.solve(root, constant + values["variance"] * SHAPES[kernel](s2))
    precision = np.eye(len(root)) + triangle.T @ triangle
    weights = np.linalg.solve(precision, triangle.T @ checkpoint["target"])
    reduction = (features * features).sum(axis=0) - (features * np.linalg.solve(precision, features)).sum(axis=0)
    return checkpoint["mean"] + features.T @ weights, np.sqrt(constant + values["variance"] - reduction)


def main(checkpoint_path, map_path):
    with np.load(checkpoint_path, allow_pickle=False) as archive:
        checkpoint = dict(archive)
    check(str(checkpoint["format"]) == "magmap-checkpoint", f"format {checkpoint['format']}")
    check(int(checkpoint["format_version"]) == 5, f"version {checkpoint['format_version']}")
    metadata = json.loads(str(checkpoint["metadata"]))
    check_arrays(checkpoint, metadata["process"])
    check_checksum(checkpoint_path, str(checkpoint["checksum"]))
    names = metadata["hyperparameter_names"]
    if metadata["process"] == "vector":
        kinds, axes = checkpoint["inducing_points"][:, 3:].T
        check(np.isin(kinds, (0, 1, 2)).all() and np.isin(axes, (0, 1, 2)).all(), "kinds and axes of the inducing points")
        print(f"a map of three axes, {len(kinds)} inducing variables, {(kinds > 0).sum()} of them of the sensor's bias")
        return
    kernel = tomllib.loads(metadata["config"])["model"]["kernel"]

    with np.load(map_path, allow_pickle=False) as archive:
        x, y, mean, deviation = (archive[name] for name in ("x", "y", "mean", "standard_deviation"))
    known = np.isfinite(mean)
    check(known.any(), f"{map_path} knows the field nowhere")
    points = np.stack(np.meshgrid(x, y), axis=2)[known]
    found_mean, found_deviation = predict(checkpoint, kernel, names, points)
    errors = np.abs(found_mean - mean[known]).max(), np.abs(found_deviation - deviation[known]).max()
    # The rounding of doubles, 50 microtesla large, times a condition number of up to 1e9.
    check(max(errors) < 1e-5, f"mean and standard deviation differ by up to {errors} microtesla from {map_path}")
    values = ", ".join(f"{name} = {value:.4g}" for name, value in zip(names, checkpoint["hyperparameters"]))
    progress = json.loads(str(checkpoint["stream"]))["progress"]
    check(progress["versions"] == metadata["updates"], f"expected as many versions of the map as updates, found {progress}")
    print(f"magmap {metadata['magmap_version']}, frame {metadata['frame']!r}, {metadata['updates']} updates, {values}")
    print(f"{known.sum()} cells within {errors[0]:.1e} (mean) and {errors[1]:.1e} (standard deviation) microtesla")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
