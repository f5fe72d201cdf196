//! Reads what is written as `map_server` does.

use std::collections::HashMap;

use super::*;
use crate::export::strength_grid;

/// A grid as `map_server` publishes it.
pub(in crate::export) struct OccupancyGrid {
    width: usize,
    resolution: f64,
    pub(in crate::export) origin: Vec<f64>,
    pub(in crate::export) data: Vec<i8>,
}

/// Reads a yaml and its picture as `map_server` documents it. Raw: grey `shade` (0 to 1) times 255, rounded, is the value when
/// it is 0 to 100 and unknown otherwise. Scale: the dark share, from `free_thresh` to `occupied_thresh`, is 0 to 100. Picture
/// row `r` is grid row `height - r - 1`.
pub(in crate::export) fn serve(yaml: &Path) -> OccupancyGrid {
    let content = std::fs::read_to_string(yaml).unwrap();
    let lines = content.lines().filter(|line| !line.starts_with('#'));
    let keys: HashMap<&str, &str> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    let [negate, occupied, free] =
        ["negate", "occupied_thresh", "free_thresh"].map(|required| keys[required].parse::<f64>().unwrap());
    assert_eq!(negate, 0.0);
    let bytes = std::fs::read(yaml.with_file_name(keys["image"])).unwrap();
    let mut parts = bytes.splitn(4, |&byte| byte == b'\n');
    let mut header = || std::str::from_utf8(parts.next().unwrap()).unwrap().to_owned();
    assert_eq!(header(), "P5");
    let (width, height): (usize, usize) =
        header().split_once(' ').map(|(w, h)| (w.parse().unwrap(), h.parse().unwrap())).unwrap();
    assert_eq!(header(), "255");
    let pixels = parts.next().unwrap();
    assert_eq!(pixels.len(), width * height);
    let mut data = vec![0; width * height];
    for (i, &pixel) in pixels.iter().enumerate() {
        let shade = f64::from(pixel) / 255.0;
        let dark = 1.0 - shade;
        data[width * (height - i / width - 1) + i % width] = match keys["mode"] {
            "raw" if (shade * 255.0).round() > 100.0 => -1,
            "raw" => (shade * 255.0).round() as i8,
            "scale" if dark > occupied => 100,
            "scale" if dark < free => 0,
            "scale" => ((dark - free) / (occupied - free) * 100.0).round_ties_even() as i8,
            mode => panic!("{mode}"),
        };
    }
    let origin = keys["origin"].trim_matches(['[', ']']).split(", ").map(|number| number.parse().unwrap()).collect();
    OccupancyGrid { width, resolution: keys["resolution"].parse().unwrap(), origin, data }
}

fn grid() -> StrengthGrid {
    let geometry = GridGeometry { resolution: 0.05, first_column: -7, first_row: 3, columns: 3, rows: 2 };
    let (mean, deviation) = (vec![40.0, 50.0, 60.0, 45.05, f64::NAN, 90.0], vec![1.0, 2.0, 4.0, 0.0, f64::NAN, 9.9]);
    StrengthGrid { geometry, ..strength_grid([3, 2], mean, deviation) }
}

#[test]
fn map_server_reads_the_cells_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let grid = grid();
    write_map_server(folder.path(), &grid, 10.0).unwrap();

    // The cell of 90 is hardly known: it does not stretch the scale, and is clamped.
    let mean = serve(&folder.path().join("mean.yaml"));
    assert_eq!(mean.data, [0, 50, 100, 25, -1, 100]);
    assert_eq!((mean.width, mean.resolution), (3, 0.05));
    let [x, y] = grid.geometry.origin();
    assert_eq!(mean.origin, [x, y, 0.0]);

    let deviation = serve(&folder.path().join("standard_deviation.yaml"));
    assert_eq!(deviation.data, [10, 20, 40, 0, -1, 100]);
}

#[test]
fn the_yaml_says_how_to_get_microtesla_back() {
    let folder = tempfile::tempdir().unwrap();
    write_map_server(folder.path(), &grid(), 10.0).unwrap();
    let yaml = std::fs::read_to_string(folder.path().join("mean.yaml")).unwrap();
    assert!(yaml.starts_with("# mean field strength, in microtesla = 40 + 0.2 * value\n"), "{yaml}");
    assert!(yaml.contains("value 100 is 60 microtesla"), "{yaml}");
}

#[test]
fn a_map_without_cells_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let result = write_map_server(folder.path(), &strength_grid([0, 0], vec![], vec![]), 10.0);
    assert!(matches!(result, Err(Error::NoCells(_))));
}
