"""Checks that the file of a map is what docs/map-file.md says, by predicting the map from its tables alone:

    pip install numpy
    python3 tests/load_map.py MAP_MAGMAP MAP_NPZ      (both of the same map)
"""

import json
import sqlite3
import sys
import tomllib
import zlib

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
}

# Those of a map of three axes alone; B is 0, or the 6 components of the bias.
OF_AXES = {"bias_mean": ("B",), "bias_covariance": ("B", "B"), "plane": ()}

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


def check_arrays(tile, process):
    """Names, shapes and finite numbers."""
    lengths = {"H": len(tile["hyperparameters"]), "M": len(tile["target"])}
    # Outputs, and numbers per inducing point: those of a map of three axes are rows of x, y, z, kind and axis.
    lengths["O"], lengths["C"] = (3, 5) if process == "vector" else (1, 2)
    lengths["B"] = len(tile.get("bias_mean", ()))
    others = OF_AXES if process == "vector" else {}
    check(set(tile) == set(ARRAYS | others), f"arrays {sorted(tile)} of the process {process}")
    for name, shape in (ARRAYS | others).items():
        array = tile[name]
        expected = tuple(lengths.get(length, length) for length in shape)
        check(array.shape == expected, f"expected {name} of shape {expected}, found {array.shape}")
        check(np.isfinite(array).all(), f"expected finite numbers in {name}")
    for name in ("covariance_root", "triangle"):
        check((np.triu(tile[name], 1) == 0).all(), f"expected {name} to be lower triangular")


def checkpoint_of(database):
    """State, stream and settings of the newest checkpoint, and its path (P x 3)."""
    (row,) = database.execute("SELECT * FROM checkpoints ORDER BY step DESC LIMIT 1")
    step, is_saved, state, stream, settings, path, checksum = row
    tiles = [number for (number,) in database.execute("SELECT tile FROM checkpoint_tiles WHERE step = ? ORDER BY tile", (step,))]
    content = step.to_bytes(8, "little") + b"".join(text.encode() + b"\0" for text in (state, stream, settings)) + path
    content += b"".join(number.to_bytes(8, "little") for number in tiles)
    check(is_saved == 1, f"expected a saved map, found saved = {is_saved}")
    check(zlib.crc32(content) == checksum, f"expected the checksum {checksum} of the checkpoint")
    return json.loads(state), json.loads(stream), tomllib.loads(settings), np.frombuffer(path, "<f8").reshape(-1, 3), tiles


def tiles_of(database, numbers):
    """The arrays of each tile by its column and row, in ascending order."""
    tiles = {}
    for number in numbers:
        ((column, row),) = database.execute("SELECT column, row FROM tiles WHERE number = ?", (number,))
        rows = database.execute("SELECT name, shape, numbers FROM arrays WHERE tile = ?", (number,))
        tiles[column, row] = {name: np.frombuffer(numbers, "<f8").reshape(json.loads(shape)) for name, shape, numbers in rows}
    return dict(sorted(tiles.items()))


def fade(grid, axis, coordinates):
    """Columns (or rows) of the two squares that may predict each coordinate, and their weights."""
    squares = (coordinates - grid["origin"][axis]) / grid["size"] + 0.5
    index = np.floor(squares)
    within = (squares - index) * grid["size"]
    is_lower = within < 0.5 * grid["size"]
    t = 0.5 + 0.5 * np.minimum(np.where(is_lower, within, grid["size"] - within) / grid["band"], 1.0)
    own = t**3 * (t * (6 * t - 15) + 10)
    return (index, own), (index + np.where(is_lower, -1, 1), 1 - own)


def has_only_first(grid, extent):
    """Whether all observations are in the first tile and its halo, which then predicts alone."""
    return (np.abs(extent - np.array(grid["origin"])) <= 0.5 * grid["size"] + grid["halo"]).all()


def blend(tiles, grid, extent, points, predict):
    """Mean and standard deviation of the mixture of what the tiles around each point predict."""
    squares = [square for square, tile in tiles.items() if len(tile["target"])]
    if grid is None or has_only_first(grid, extent):
        return predict(tiles[(0, 0)], points)
    parts = []
    for columns, along_x in fade(grid, 0, points[:, 0]):
        for rows, along_y in fade(grid, 1, points[:, 1]):
            distances = [(columns - column) ** 2 + (rows - row) ** 2 for column, row in squares]
            parts.append((np.argmin(distances, axis=0), along_x * along_y))
    mean, square = np.zeros(len(points)), np.zeros(len(points))
    for nearest, weights in parts:
        for number in np.unique(nearest[weights > 0]):
            chosen = (nearest == number) & (weights > 0)
            own, deviation = predict(tiles[squares[number]], points[chosen])
            mean[chosen] += weights[chosen] * own
            square[chosen] += weights[chosen] * (own**2 + deviation**2)
    return mean, np.sqrt(square - mean**2)


# An observation of the trajectory.
RECORD = np.dtype([
    ("stamp", "<i8"), ("position", "<f8", 3), ("rotation", "<f8", (3, 3)), ("field", "<f8", 3), ("strength", "<f8"),
    ("speed", "<f8"), ("readings", "<u4"),
])  # fmt: skip


def check_trajectory(database, state):
    """All that the map has learnt is in its trajectory, in order, and each run is known."""
    batches = database.execute("SELECT number, run, observations, checksum FROM batches ORDER BY number").fetchall()
    check([number for number, *_ in batches] == list(range(state["updates"])), "expected a batch for each update")
    for number, _, observations, checksum in batches:
        check(zlib.crc32(number.to_bytes(8, "little") + observations) == checksum, f"the checksum of batch {number} is wrong")
    trajectory = np.concatenate([np.frombuffer(observations, RECORD) for _, _, observations, _ in batches])
    check(len(trajectory) == state["observations"], f"expected {state['observations']} observations, found {len(trajectory)}")
    check(trajectory["readings"].sum() == state["used_readings"], f"expected {state['used_readings']} readings in them")
    check((np.diff(trajectory["stamp"]) >= 0).all(), "expected observations in the order of their stamps")
    low, high = trajectory["position"][:, :2].min(axis=0), trajectory["position"][:, :2].max(axis=0)
    check(np.array_equal([low, high], state["extent"]), f"expected the extent of the map, found {low} to {high}")
    # A rotation turns the field, whose axes are averaged apart from its strength: equal where the robot does not turn.
    check((np.linalg.norm(trajectory["field"], axis=1) <= trajectory["strength"] * (1 + 1e-12)).all(), "axes longer than the strength")
    runs = {number for (number,) in database.execute("SELECT number FROM runs")}
    check({run for _, run, _, _ in batches} <= runs, f"expected batches of the runs {runs}")


def predict(tile, kernel, names, points):
    """Mean and standard deviation of the field strength at points (N x 2)."""
    values = dict(zip(names, tile["hyperparameters"]))
    lengthscales = [values[name] for name in names if name.startswith("lengthscale")]
    inducing, root, triangle = (tile[name] for name in ("inducing_points", "covariance_root", "triangle"))
    s2 = (((inducing[:, None] - points[None]) / lengthscales) ** 2).sum(axis=2)
    constant = values.get("constant", 0.0)
    features = np.linalg.solve(root, constant + values["variance"] * SHAPES[kernel](s2))
    precision = np.eye(len(root)) + triangle.T @ triangle
    weights = np.linalg.solve(precision, triangle.T @ tile["target"])
    reduction = (features * features).sum(axis=0) - (features * np.linalg.solve(precision, features)).sum(axis=0)
    return tile["mean"] + features.T @ weights, np.sqrt(constant + values["variance"] - reduction)


FIELD, HARD_IRON = 0, 1

MIRROR = np.array([1.0, 1.0, -1.0])

# A direction of the sensor's bias is unknown where more than this share of its prior variance is left.
KNOWN_BELOW = 0.25


def field_covariance(values, places, axes, other_places, other_axes):
    """Covariance of axes (0 to 2) of the field at places (N x 3, heights from the plane) with others."""
    below = harmonic(values, places, axes, other_places, other_axes)
    # Sources above are those below in a mirror.
    above = harmonic(values, places * MIRROR, axes, other_places * MIRROR, other_axes) * np.outer(MIRROR[axes], MIRROR[other_axes])
    same = axes[:, None] == other_axes[None]
    return values["constant"] * same + values["variance"] * below + values.get("variance_above", 0.0) * above


def harmonic(values, places, axes, other_places, other_axes):
    """The part of the covariance that sources of variance one cause below the plane."""
    length, reflected = values["lengthscale"], MIRROR
    d = places[:, None] - other_places[None]
    d[..., 2] = places[:, None, 2] + other_places[None, :, 2] + length
    square = (d * d).sum(axis=2)
    same = axes[:, None] == other_axes[None]
    u = np.take_along_axis(d, axes[:, None, None], axis=2)[..., 0]
    t = np.take_along_axis(d, other_axes[None, :, None], axis=2)[..., 0] * reflected[other_axes]
    return (length**2 / square) ** 1.5 * (same * reflected[axes][:, None] - 3 * u * t / square)


def predict_axes(tile, config, names, points):
    """Mean (N x 3) and covariance (N x 3 x 3) of the field's axes at points (N x 2), free of the sensor's bias."""
    values = dict(zip(names, tile["hyperparameters"]))
    root, triangle = tile["covariance_root"], tile["triangle"]
    # The map is drawn at the height of the plane, from which heights count.
    places = tile["inducing_points"][:, :3] - [0.0, 0.0, tile["plane"]]
    kinds, axes = tile["inducing_points"][:, 3:].T.astype(int)
    precision = np.eye(len(root)) + triangle.T @ triangle
    weights = np.linalg.solve(precision, triangle.T @ tile["target"])
    is_field = kinds == FIELD

    # The bias of the sensor: along directions of which little is known, the map is that of a sensor without one.
    prior = np.where(kinds == HARD_IRON, config["hard_iron"], config["speed_bias"])[~is_field]
    bias = np.linalg.solve(root, np.eye(len(kinds))[:, ~is_field] * prior**2)
    bias_covariance = np.diag(prior**2) - bias.T @ bias + bias.T @ np.linalg.solve(precision, bias)
    variances, directions = np.linalg.eigh(bias_covariance / np.outer(prior, prior))
    unknown = directions[:, variances >= KNOWN_BELOW] / np.sqrt(variances[variances >= KNOWN_BELOW])
    unknown_mean = unknown.T @ (bias.T @ weights / prior)
    combined = bias @ (unknown / prior[:, None])
    withdrawn = np.linalg.solve(precision, combined) - combined

    places_of_rows = np.repeat(np.column_stack([points, np.zeros(len(points))]), 3, axis=0)
    covariance = np.zeros((len(kinds), len(places_of_rows)))
    axes_of_rows = np.tile(np.arange(3), len(points))
    covariance[is_field] = field_covariance(values, places[is_field], axes[is_field], places_of_rows, axes_of_rows)
    features = np.linalg.solve(root, covariance)
    shared = features.T @ withdrawn
    mean = features.T @ weights - shared @ unknown_mean
    p, q = (rows.reshape(len(kinds), -1, 3) for rows in (features, np.linalg.solve(precision, features)))
    variance = values["variance"] + values.get("variance_above", 0.0)
    prior_covariance = values["constant"] * np.eye(3) + variance * np.diag([1.0, 1.0, 2.0])
    shared = shared.reshape(-1, 3, shared.shape[1])
    covariance = prior_covariance - np.einsum("mni,mnj->nij", p, p - q) - np.einsum("nik,njk->nij", shared, shared)
    return mean.reshape(-1, 3), covariance


def check_axes(tile, config, names, archive, map_path):
    """Compares the axes with those of the map."""
    x, y, axes, covariance = (archive[name] for name in ("x", "y", "axes", "axes_covariance"))
    known = np.isfinite(axes[0])
    check(known.any(), f"{map_path} knows the field nowhere")
    points = np.stack(np.meshgrid(x, y), axis=2)[known]
    found_mean, found_covariance = predict_axes(tile, config, names, points)
    rows, columns = np.triu_indices(3)
    errors = np.abs(found_mean.T - axes[:, known]).max(), np.abs(found_covariance[:, rows, columns].T - covariance[:, known]).max()
    # Axes are interpolated within blocks of cells, to 1e-5 of the deviation and of the variance of the field, of the order of 10 and 100.
    check(errors[0] < 2e-4 and errors[1] < 2e-3, f"axes and their covariance differ by up to {errors} from {map_path}")
    print(f"{known.sum()} cells, axes within {errors[0]:.1e} microtesla, covariances within {errors[1]:.1e} microtesla squared")


def main(database_path, map_path):
    database = sqlite3.connect(f"file:{database_path}?mode=ro", uri=True)
    state, stream, settings, path, numbers = checkpoint_of(database)
    tiles = tiles_of(database, numbers)
    for tile in tiles.values():
        check_arrays(tile, state["process"])
    check_trajectory(database, state)
    (first, *_) = tiles.values()
    names = state["hyperparameter_names"]
    if state["process"] == "vector":
        kinds, axes = first["inducing_points"][:, 3:].T
        check(np.isin(kinds, (0, 1, 2)).all() and np.isin(axes, (0, 1, 2)).all(), "kinds and axes of the inducing points")
        print(f"a map of three axes, {len(kinds)} inducing variables, {(kinds > 0).sum()} of them of the sensor's bias")
        if len(tiles) > 1:
            print(f"{len(tiles)} tiles; their axes are not computed here")
            return
        with np.load(map_path, allow_pickle=False) as archive:
            check_axes(first, settings["vector"], names, archive, map_path)
        return

    with np.load(map_path, allow_pickle=False) as archive:
        x, y, mean, deviation = (archive[name] for name in ("x", "y", "mean", "standard_deviation"))
        check(np.array_equal(archive["path"], path[:, :2]), f"expected the path of {map_path}")
    known = np.isfinite(mean)
    check(known.any(), f"{map_path} knows the field nowhere")
    points = np.stack(np.meshgrid(x, y), axis=2)[known]
    of_tile = lambda tile, points: predict(tile, settings["model"]["kernel"], names, points)
    found_mean, found_deviation = blend(tiles, state["tile_grid"], state["extent"], points, of_tile)
    errors = np.abs(found_mean - mean[known]).max(), np.abs(found_deviation - deviation[known]).max()
    # The rounding of doubles, 50 microtesla large, times a condition number of up to 1e9.
    check(max(errors) < 1e-5, f"mean and standard deviation differ by up to {errors} microtesla from {map_path}")
    values = ", ".join(f"{name} = {value:.4g}" for name, value in zip(names, first["hyperparameters"]))
    progress = stream["progress"]
    check(progress["versions"] == state["updates"], f"expected as many versions of the map as updates, found {progress}")
    print(f"magmap {state['magmap_version']}, frame {state['frame']!r}, {state['updates']} updates, {values}")
    print(f"{len(tiles)} tiles, {known.sum()} cells within {errors[0]:.1e} (mean) and {errors[1]:.1e} (standard deviation) microtesla")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
