//! A saved map for other programs: the same numbers in every format, and nothing is overwritten unasked.

use super::{common, npz};

use std::fs::{self, File};
use std::path::Path;

use tempfile::{TempDir, tempdir};
use tiff::decoder::{Decoder, DecodingResult};
use tiff::tags::Tag;

/// Runs in the folder; what was written to stdout and to stderr.
#[track_caller]
fn expect(code: i32, arguments: &[&str], folder: &TempDir) -> (String, String) {
    common::expect(code, common::command(env!("CARGO_BIN_EXE_magmap"), arguments, folder.path()))
}

/// A map of a room of 3 m by 3 m, in `map`, with values that suit it: learning them takes most of the time.
fn mapped(folder: &TempDir, settings: &[&str]) {
    let room = ["simulate", "--out", "bag", "--size", "3x3", "--lane-spacing", "0.6", "--duration", "20"];
    expect(0, &room, folder);
    let replay = ["replay", "bag", "--out", "map", "--set", "learning.max_evaluations=0"];
    expect(0, &[&replay[..], settings].concat(), folder);
}

/// Values of an array in an `.npz` file.
fn array(file: &Path, name: &str) -> Vec<f64> {
    npz::read(file, name).1
}

/// Header and rows of a table.
fn table(file: &Path) -> (Vec<String>, Vec<Vec<f64>>) {
    let text = fs::read_to_string(file).unwrap();
    let mut lines = text.lines().map(|line| line.split(','));
    let header = lines.next().unwrap().map(str::to_owned).collect();
    (header, lines.map(|cells| cells.map(|cell| cell.parse().unwrap()).collect()).collect())
}

/// Checks the table against the arrays: a row for each known cell, in their order; to the last digit, a ten-thousandth.
#[track_caller]
fn assert_same(rows: &[Vec<f64>], arrays: &Path) {
    let of = |name| array(arrays, name);
    let (x, y, mean, deviation) = (of("x"), of("y"), of("mean"), of("standard_deviation"));
    let known: Vec<usize> = (0..mean.len()).filter(|&cell| mean[cell].is_finite()).collect();
    assert_eq!(rows.len(), known.len());
    assert!(known.len() > 1000 && known.len() < mean.len(), "{} of {}", known.len(), mean.len());
    for (row, cell) in rows.iter().zip(known) {
        let expected = [x[cell % x.len()], y[cell / x.len()], mean[cell], deviation[cell]];
        let error = row.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
        assert!(error < 5.1e-5, "{row:?}, expected {expected:?}");
    }
}

#[test]
fn every_format_has_the_numbers_of_the_replay() {
    let folder = tempdir().unwrap();
    mapped(&folder, &[]);
    let at = |name: &str| folder.path().join(name);
    let before = fs::read(at("map/map.magmap")).unwrap();
    let formats = "csv,geotiff,costmap-filter,npz,map-server";
    let (out, _) = expect(0, &["export", "map", "--format", formats], &folder);
    let files = [
        "map.csv",
        "map.tif",
        "poor_localization.yaml",
        "poor_localization.pgm",
        "map.npz",
        "mean.yaml",
        "mean.pgm",
        "standard_deviation.yaml",
        "standard_deviation.pgm",
    ];
    let written: Vec<_> = out.lines().map(|line| line.split_whitespace().last().unwrap().to_owned()).collect();
    assert_eq!(written, files.map(|name| format!("map-export/{name}")));
    assert_eq!(fs::read_dir(at("map-export")).unwrap().count(), files.len());
    assert_eq!(before, fs::read(at("map/map.magmap")).unwrap());

    // What a replay writes too is the same file.
    for name in &files[4..] {
        let [exported, replayed] = ["map-export", "map"].map(|folder| fs::read(at(folder).join(name)).unwrap());
        assert!(exported == replayed, "{name}");
    }
    let arrays = at("map/map.npz");
    let (header, rows) = table(&at("map-export/map.csv"));
    assert_eq!(header, ["x_m", "y_m", "mean_uT", "standard_deviation_uT"]);
    assert_same(&rows, &arrays);

    let mut decoder = Decoder::new(File::open(at("map-export/map.tif")).unwrap()).unwrap();
    let (columns, height) = decoder.dimensions().unwrap();
    let DecodingResult::F32(bands) = decoder.read_image().unwrap() else { panic!("expected 32-bit floats") };
    let [mean, deviation] = ["mean", "standard_deviation"].map(|name| array(&arrays, name));
    assert_eq!(bands.len(), 2 * mean.len());
    for (cell, pixel) in bands.chunks_exact(columns as usize * 2).rev().flat_map(|row| row.chunks_exact(2)).enumerate()
    {
        assert_eq!(pixel[0].to_bits(), (mean[cell] as f32).to_bits());
        assert_eq!(pixel[1].to_bits(), (deviation[cell] as f32).to_bits());
    }
    let corner = decoder.get_tag_f64_vec(Tag::ModelTiepointTag).unwrap();
    let origin = array(&arrays, "origin");
    assert!((corner[3] - origin[0]).abs() < 1e-9, "{corner:?}");
    assert!((corner[4] - origin[1] - 0.05 * f64::from(height)).abs() < 1e-9, "{corner:?}");

    // The less is known, the darker; the unknown is darkest, and not black.
    let mask = fs::read(at("map-export/poor_localization.pgm")).unwrap();
    let mask = &mask[mask.len() - mean.len()..];
    let mut shades: Vec<(f64, u8)> =
        deviation.chunks(columns as usize).rev().flatten().copied().zip(mask.iter().copied()).collect();
    shades.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    assert!(shades.is_sorted_by(|(_, one), (_, other)| one >= other));
    assert!(shades.iter().all(|(deviation, grey)| deviation.is_finite() || *grey == 3));
    assert!(shades[0].1 > 191 && shades.iter().any(|(deviation, grey)| deviation.is_finite() && *grey < 128));
}

#[test]
fn three_axes_and_their_uncertainty_are_in_the_table_of_a_map_in_tiles() {
    let folder = tempdir().unwrap();
    mapped(&folder, &["--set", "model.field=vector", "--set", "tiles.size=3"]);
    expect(0, &["export", "map/map.magmap", "--format", "csv", "--out", "table"], &folder);
    let (header, rows) = table(&folder.path().join("table/map.csv"));
    let axes = ["bx", "by", "bz"];
    let expected = [
        ["x_m", "y_m", "mean_uT", "standard_deviation_uT"].map(String::from).to_vec(),
        axes.map(|axis| format!("{axis}_uT")).to_vec(),
        axes.map(|axis| format!("{axis}_standard_deviation_uT")).to_vec(),
    ];
    assert_eq!(header, expected.concat());
    let arrays = folder.path().join("map/map.npz");
    assert_same(&rows, &arrays);
    let [mean, axes, covariance] = ["mean", "axes", "axes_covariance"].map(|name| array(&arrays, name));
    let cells = mean.len();
    for (row, cell) in rows.iter().zip((0..cells).filter(|&cell| mean[cell].is_finite())) {
        for (axis, variance) in [0, 3, 5].into_iter().enumerate() {
            assert!((row[4 + axis] - axes[axis * cells + cell]).abs() < 5.1e-5, "{row:?}");
            assert!((row[7 + axis] - covariance[variance * cells + cell].sqrt()).abs() < 5.1e-5, "{row:?}");
        }
    }
}

#[test]
fn cells_are_as_the_settings_say() {
    let folder = tempdir().unwrap();
    mapped(&folder, &[]);
    let coarse = ["--set", "raster.resolution=0.2", "--set", "raster.margin=0"];
    expect(0, &[&["export", "map", "--format", "csv,npz"], &coarse[..]].concat(), &folder);
    let [arrays, fine] = ["map-export/map.npz", "map/map.npz"].map(|name| folder.path().join(name));
    assert_eq!((array(&arrays, "resolution"), array(&fine, "resolution")), (vec![0.2], vec![0.05]));
    let spacing = array(&arrays, "x").windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    assert!((spacing - 0.2).abs() < 1e-9, "{spacing}");
    assert!(array(&arrays, "x").len() < array(&fine, "x").len() / 4);
    // The path and the model are the same.
    for name in ["path", "inducing_points", "hyperparameters"] {
        assert_eq!(array(&arrays, name), array(&fine, name));
    }
    let (_, err) = expect(2, &["export", "map", "--format", "csv", "--set", "raster.resolution=0"], &folder);
    assert!(err.contains("raster.resolution"), "{err}");
    let large = ["export", "map", "--format", "csv", "--out", "x", "--set", "raster.max_cells=100"];
    let (_, err) = expect(1, &large, &folder);
    assert!(err.contains("100") && !folder.path().join("x").exists(), "{err}");
}

#[test]
fn what_cannot_be_exported_is_named_and_nothing_is_overwritten() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (code, arguments, expected) in [
        (1, &["export", "nowhere", "--format", "csv"][..], "nowhere"),
        (2, &["export", "nowhere"], "--format"),
        (2, &["export", "nowhere", "--format", "shapefile"], "geotiff"),
    ] {
        let (out, err) = expect(code, arguments, &folder);
        assert!(err.contains(expected) && out.is_empty(), "{arguments:?}: {err}");
    }
    mapped(&folder, &[]);
    let (_, err) = expect(1, &["export", "map/map.npz", "--format", "csv"], &folder);
    assert!(err.contains("map.npz") && err.contains("expected a map of magmap"), "{err}");
    fs::write(at("file"), "mine").unwrap();
    let (_, err) = expect(1, &["export", "map", "--format", "csv", "--out", "file"], &folder);
    assert!(err.contains("expected a folder") && err.contains("file"), "{err}");
    let (_, err) = expect(1, &["export", "map", "--format", "csv", "--out", "file/below"], &folder);
    assert!(err.contains("file/below"), "{err}");

    // Other files in the folder are no obstacle. If one of its own exists, none is written.
    fs::create_dir(at("out")).unwrap();
    fs::write(at("out/map.tif"), "mine").unwrap();
    let export = ["export", "map", "--out", "out", "--format"];
    let (_, err) = expect(1, &[&export[..], &["csv,geotiff"]].concat(), &folder);
    assert!(err.contains("out/map.tif exists") && err.contains("--force"), "{err}");
    assert!(!at("out/map.csv").exists() && fs::read(at("out/map.tif")).unwrap() == b"mine");
    expect(0, &[&export[..], &["csv"]].concat(), &folder);
    assert_eq!(fs::read(at("out/map.tif")).unwrap(), b"mine");
    expect(0, &[&export[..], &["csv,geotiff", "--force"]].concat(), &folder);
    assert!(fs::read(at("out/map.tif")).unwrap().starts_with(b"II*"));
    assert_eq!((fs::read(at("file")).unwrap(), fs::read_dir(at("out")).unwrap().count()), (b"mine".to_vec(), 2));
}
