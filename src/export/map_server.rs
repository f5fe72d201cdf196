//! Grids that nav2's `map_server` serves as `nav_msgs/OccupancyGrid`: a yaml and a pgm per layer.
//!
//! In `mode: raw` the server takes each grey value from 0 to 100 as it is and all others as unknown (-1); `negate` and the
//! thresholds have no effect but are required (`nav2_map_server`, `map_io.cpp`, checked 2026). The top row of the picture has the
//! highest y; `origin` is the lower left corner of the lower left cell.

use std::io::{self, Write};
use std::path::Path;

use super::colour::mean_scale;
use super::file::write_atomically;
use super::scale::Scale;
use super::{Error, check_shape};
use crate::field::grid::{FieldGrid, GridGeometry};
use crate::field::quantity::Quantity;

/// Writes `mean.yaml`, `mean.pgm`, `standard_deviation.yaml` and `standard_deviation.pgm` into `folder`.
///
/// The mean is scaled as in the picture; the standard deviation from 0 (0 microtesla) to 100 (the highest). The yaml states the scale.
///
/// # Errors
/// Arrays that do not fit the grid, a grid without cells, and errors of the operating system.
pub fn write_map_server(folder: &Path, grid: &FieldGrid, prior_standard_deviation: f64) -> Result<(), Error> {
    check_shape(grid)?;
    let layers = [
        ("mean", "mean", &grid.mean, mean_scale(grid, prior_standard_deviation)),
        (
            "standard_deviation",
            "standard deviation of the",
            &grid.standard_deviation,
            Scale::from_zero(&grid.standard_deviation),
        ),
    ];
    for (name, of, values, scale) in layers {
        write_pgm(&folder.join(format!("{name}.pgm")), &grid.geometry, values, scale)?;
        let quantity = format!("{of} {}", grid.quantity.name());
        write_yaml(&folder.join(format!("{name}.yaml")), grid, name, &quantity, scale)?;
    }
    Ok(())
}

fn write_pgm(path: &Path, geometry: &GridGeometry, values: &[f64], scale: Scale) -> Result<(), Error> {
    if geometry.is_empty() {
        return Err(Error::NoCells(path.to_owned()));
    }
    write_atomically(path, |writer| {
        write!(writer, "P5\n{} {}\n255\n", geometry.columns, geometry.rows)?;
        for row in values.chunks_exact(geometry.columns).rev() {
            // Unknown, -1, becomes 255.
            let row: Vec<u8> = row.iter().map(|&value| scale.occupancy(value) as u8).collect();
            writer.write_all(&row)?;
        }
        Ok(())
    })
}

fn write_yaml(path: &Path, grid: &FieldGrid, name: &str, quantity: &str, scale: Scale) -> Result<(), Error> {
    let FieldGrid { geometry, .. } = grid;
    let (unit, in_unit) = match grid.quantity {
        Quantity::Strength => (" microtesla", ", in microtesla"),
        Quantity::Probability => ("", ""),
    };
    let Scale { low, high } = scale;
    let step = scale.step();
    let [x, y] = geometry.origin();
    let resolution = geometry.resolution;
    write_atomically(path, |writer| -> io::Result<()> {
        write!(
            writer,
            "# {quantity}{in_unit} = {low} + {step} * value\n\
             # value 0 is {low}{unit}, value 100 is {high}{unit}, -1 is unknown\n\
             image: {name}.pgm\n\
             mode: raw\n\
             resolution: {resolution}\n\
             origin: [{x}, {y}, 0]\n\
             negate: 0\n\
             occupied_thresh: 0.65\n\
             free_thresh: 0.25\n"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::export::strength_grid;

    /// What `map_server` publishes.
    struct OccupancyGrid {
        width: usize,
        resolution: f64,
        origin: Vec<f64>,
        data: Vec<i8>,
    }

    /// Reads a yaml and its picture as `map_server` documents it: grey `shade` (0 to 1) times 255, rounded, is the value when
    /// it is 0 to 100 and unknown otherwise; picture row `r` is grid row `height - r - 1`.
    fn serve(yaml: &Path) -> OccupancyGrid {
        let content = std::fs::read_to_string(yaml).unwrap();
        let lines = content.lines().filter(|line| !line.starts_with('#'));
        let keys: HashMap<&str, &str> = lines.map(|line| line.split_once(": ").unwrap()).collect();
        assert_eq!(keys["mode"], "raw");
        for required in ["negate", "occupied_thresh", "free_thresh"] {
            keys[required].parse::<f64>().unwrap();
        }
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
            let value = (shade * 255.0).round();
            data[width * (height - i / width - 1) + i % width] = if value <= 100.0 { value as i8 } else { -1 };
        }
        let origin =
            keys["origin"].trim_matches(['[', ']']).split(", ").map(|number| number.parse().unwrap()).collect();
        OccupancyGrid { width, resolution: keys["resolution"].parse().unwrap(), origin, data }
    }

    fn grid() -> FieldGrid {
        let geometry = GridGeometry { resolution: 0.05, first_column: -7, first_row: 3, columns: 3, rows: 2 };
        let (mean, deviation) =
            (vec![40.0, 50.0, 60.0, 45.05, f64::NAN, 90.0], vec![1.0, 2.0, 4.0, 0.0, f64::NAN, 9.9]);
        FieldGrid { geometry, ..strength_grid([3, 2], mean, deviation) }
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
}
