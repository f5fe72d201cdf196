//! The map as numpy arrays in one `.npz` file.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use npyz::npz::NpzWriter;
use npyz::zip::DateTime;
use npyz::zip::write::FileOptions;
use npyz::{DType, Serialize, WriterBuilder};
use streaming_gp::report::NamedValue;

use super::file::write_atomically;
use super::{Error, check_shape};
use crate::mapping::grid::FieldGrid;

/// Everything `map.npz` holds.
///
/// | array | shape | unit |
/// | --- | --- | --- |
/// | `mean`, `standard_deviation` | rows x columns, lowest row first; not-a-number where unknown | microtesla; of a yes/no signal a probability |
/// | `origin` | 2: lower left corner of the lower left cell | metres |
/// | `resolution` | scalar: side of a cell | metres |
/// | `x`, `y` | columns, rows: centres of the cells | metres |
/// | `inducing_points`, `path` | M x 2, points x 2 | metres |
/// | `hyperparameters`, `hyperparameter_names` | one each | of the kernel |
///
/// It loads with `numpy.load(path, allow_pickle=False)`; numbers are float64, names are unicode strings.
#[derive(Clone, Debug)]
pub struct MapArrays<'a> {
    /// Mean and standard deviation per cell.
    pub grid: &'a FieldGrid,
    /// Where the inducing points are.
    pub inducing_points: &'a [[f64; 2]],
    /// The hyperparameters.
    pub hyperparameters: &'a [NamedValue],
    /// Where the sensor was, in order.
    pub path: &'a [[f64; 2]],
}

type Archive<'a> = NpzWriter<&'a mut BufWriter<File>>;

impl MapArrays<'_> {
    /// Writes the arrays; the same arrays give the same bytes.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        check_shape(self.grid)?;
        write_atomically(path, |file| {
            let mut archive = NpzWriter::new(file);
            self.write_arrays(&mut archive)?;
            archive.zip_writer().finish()?;
            Ok(())
        })
    }

    fn write_arrays(&self, archive: &mut Archive) -> io::Result<()> {
        let geometry = &self.grid.geometry;
        let cells = [geometry.rows as u64, geometry.columns as u64];
        write_numbers(archive, "mean", &cells, self.grid.mean.iter().copied())?;
        write_numbers(archive, "standard_deviation", &cells, self.grid.standard_deviation.iter().copied())?;
        write_numbers(archive, "origin", &[2], geometry.origin())?;
        write_numbers(archive, "resolution", &[], [geometry.resolution])?;
        write_numbers(archive, "x", &cells[1..], (0..geometry.columns).map(|column| geometry.centre(column, 0)[0]))?;
        write_numbers(archive, "y", &cells[..1], (0..geometry.rows).map(|row| geometry.centre(0, row)[1]))?;
        write_points(archive, "inducing_points", self.inducing_points)?;
        write_points(archive, "path", self.path)?;
        let values = self.hyperparameters.iter().map(|hyperparameter| hyperparameter.value);
        write_numbers(archive, "hyperparameters", &[self.hyperparameters.len() as u64], values)?;
        let names: Vec<&str> = self.hyperparameters.iter().map(|hyperparameter| hyperparameter.name.as_str()).collect();
        write_names(archive, "hyperparameter_names", &names)
    }
}

fn write_points(archive: &mut Archive, name: &str, points: &[[f64; 2]]) -> io::Result<()> {
    write_numbers(archive, name, &[points.len() as u64, 2], points.iter().flatten().copied())
}

fn write_numbers(
    archive: &mut Archive,
    name: &str,
    shape: &[u64],
    values: impl IntoIterator<Item = f64>,
) -> io::Result<()> {
    write_array(archive, name, "<f8", shape, values)
}

/// Writes names as numpy's `str`, as wide as the longest.
fn write_names(archive: &mut Archive, array: &str, names: &[&str]) -> io::Result<()> {
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(1);
    let names_as_code_points = names.iter().map(|name| name.chars().collect::<Vec<char>>());
    write_array(archive, array, &format!("<U{width}"), &[names.len() as u64], names_as_code_points)
}

fn write_array<T: Serialize>(
    archive: &mut Archive,
    name: &str,
    type_string: &str,
    shape: &[u64],
    values: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    let type_string = type_string.parse().map_err(io::Error::other)?;
    // Without the time of writing, equal maps are equal files.
    let options = FileOptions::default().last_modified_time(DateTime::default());
    let array = archive.array(name, options)?;
    let mut array = array.dtype(DType::Plain(type_string)).shape(shape).begin_nd()?;
    array.extend(values)?;
    array.finish()
}

#[cfg(test)]
mod tests {
    use npyz::Deserialize;
    use npyz::npz::NpzArchive;

    use super::*;
    use crate::mapping::grid::GridGeometry;
    use crate::mapping::quantity::Quantity;

    /// Shape and values of an array.
    fn read<T: Deserialize>(path: &Path, name: &str) -> (Vec<u64>, Vec<T>) {
        let mut archive = NpzArchive::open(path).unwrap();
        let array = archive.by_name(name).unwrap().unwrap();
        (array.shape().to_vec(), array.into_vec().unwrap())
    }

    fn grid() -> FieldGrid {
        let geometry = GridGeometry { resolution: 0.5, first_column: -3, first_row: 2, columns: 3, rows: 2 };
        FieldGrid {
            quantity: Quantity::Strength,
            geometry,
            mean: vec![40.0, 41.0, 42.0, 50.0, f64::NAN, 52.0],
            standard_deviation: vec![1.0, 1.1, 1.2, 2.0, f64::NAN, 2.2],
        }
    }

    #[test]
    fn every_array_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.npz");
        let grid = grid();
        let named = |name: &str, value| NamedValue { name: name.into(), value };
        let hyperparameters = [named("lengthscale", 0.7), named("noise variance in µT²", 2.0)];
        let (points, driven) = ([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[-1.0, -2.0]]);
        let arrays =
            MapArrays { grid: &grid, inducing_points: &points, hyperparameters: &hyperparameters, path: &driven };
        arrays.write(&path).unwrap();

        let (shape, mean) = read::<f64>(&path, "mean");
        assert_eq!(shape, [2, 3]);
        assert_eq!(mean[..4], [40.0, 41.0, 42.0, 50.0]);
        assert!(mean[4].is_nan());
        assert_eq!(read::<f64>(&path, "standard_deviation").1[5], 2.2);
        assert_eq!(read::<f64>(&path, "origin"), (vec![2], vec![-1.5, 1.0]));
        assert_eq!(read::<f64>(&path, "resolution"), (vec![], vec![0.5]));
        assert_eq!(read::<f64>(&path, "x"), (vec![3], vec![-1.25, -0.75, -0.25]));
        assert_eq!(read::<f64>(&path, "y"), (vec![2], vec![1.25, 1.75]));
        assert_eq!(read::<f64>(&path, "inducing_points"), (vec![3, 2], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(read::<f64>(&path, "path"), (vec![1, 2], vec![-1.0, -2.0]));
        assert_eq!(read::<f64>(&path, "hyperparameters"), (vec![2], vec![0.7, 2.0]));
        let names = read::<String>(&path, "hyperparameter_names");
        assert_eq!(names, (vec![2], vec!["lengthscale".to_owned(), "noise variance in µT²".to_owned()]));
    }

    #[test]
    fn an_empty_map_keeps_its_shapes_and_equal_maps_are_equal_files() {
        let folder = tempfile::tempdir().unwrap();
        let geometry = GridGeometry { resolution: 0.1, first_column: 0, first_row: 0, columns: 0, rows: 0 };
        let grid = FieldGrid { geometry, quantity: Quantity::Strength, mean: vec![], standard_deviation: vec![] };
        let arrays = MapArrays { grid: &grid, inducing_points: &[], hyperparameters: &[], path: &[] };
        let files = ["a.npz", "b.npz"].map(|name| folder.path().join(name));
        files.iter().for_each(|file| arrays.write(file).unwrap());
        assert_eq!(read::<f64>(&files[0], "mean"), (vec![0, 0], vec![]));
        assert_eq!(read::<f64>(&files[0], "inducing_points"), (vec![0, 2], vec![]));
        assert_eq!(read::<String>(&files[0], "hyperparameter_names"), (vec![0], vec![]));
        let bytes = std::fs::read(&files[0]).unwrap();
        assert_eq!(bytes, std::fs::read(&files[1]).unwrap());
        // Time and date in the header of the first array: those of 1980, where a zip file's calendar begins, not of now.
        assert_eq!(bytes[10..14], [0, 0, 0x21, 0]);
    }
}
