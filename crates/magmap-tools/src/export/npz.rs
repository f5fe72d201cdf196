//! The map as numpy arrays in one `.npz` file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use npyz::npz::file_name_from_array_name;
use npyz::{DType, Serialize, WriteOptions, WriterBuilder};
use streaming_gp::NamedValue;
use zip::write::FileOptions;
use zip::{DateTime, ZipWriter};

use super::file::write_atomically;
use super::{Error, check_axes, check_shape};
use magmap::display::AxesGrid;
use magmap::field::grid::StrengthGrid;
use magmap::field::map::SensorBias;

/// Everything `map.npz` holds.
///
/// | array | shape | unit |
/// | --- | --- | --- |
/// | `mean`, `standard_deviation` | rows x columns, lowest row first; NaN where unknown | microtesla |
/// | `origin` | 2: lower left corner of the lower left cell | metres |
/// | `resolution` | scalar: side of a cell | metres |
/// | `x`, `y` | columns, rows: centres of the cells | metres |
/// | `inducing_points`, `path` | M x 2, points x 2 | metres |
/// | `hyperparameters`, `hyperparameter_names` | one each | of the kernel; with tiles, of the one that learnt last |
/// | `axes` | 3 x rows x columns: x, y and z in the map's frame; NaN where unknown | microtesla |
/// | `axes_covariance` | 6 x rows x columns: xx, xy, xz, yy, yz, zz; NaN where unknown | microtesla squared |
/// | `share_below` | scalar: share of the field's variance that comes from below the sensor | |
/// | `hard_iron`, `hard_iron_sd` | 3: along the sensor's axes, and its standard deviation | microtesla |
///
/// The axes are only in a map of the three axes, the share and the hard iron only where the map learns them.
///
/// The file loads with `numpy.load(path, allow_pickle=False)`; numbers are float64, names are unicode strings.
#[derive(Clone, Debug)]
pub struct MapArrays<'a> {
    /// Mean and standard deviation per cell.
    pub grid: &'a StrengthGrid,
    /// Positions of the inducing points.
    pub inducing_points: &'a [[f64; 2]],
    /// The hyperparameters.
    pub hyperparameters: &'a [NamedValue],
    /// Positions of the sensor, in order.
    pub path: &'a [[f64; 2]],
    /// The axes per cell, where they are mapped.
    pub axes: Option<&'a AxesGrid>,
    /// Share of the field's variance that comes from below the sensor, where it is learnt.
    pub share_below: Option<f64>,
    /// The bias of the sensor, where it is learnt.
    pub sensor_bias: Option<SensorBias>,
}

pub(crate) type Archive<'a> = ZipWriter<&'a mut BufWriter<File>>;

impl MapArrays<'_> {
    /// Writes the arrays; the same arrays give the same bytes.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        check_shape(self.grid)?;
        self.axes.map_or(Ok(()), |axes| check_axes(self.grid, axes))?;
        write_npz(path, |archive| self.write_arrays(archive))
    }

    fn write_arrays(&self, archive: &mut Archive) -> io::Result<()> {
        let StrengthGrid { geometry, mean, standard_deviation, .. } = self.grid;
        let cells = [geometry.rows as u64, geometry.columns as u64];
        let x = (0..geometry.columns).map(|column| geometry.centre(column, 0)[0]);
        let y = (0..geometry.rows).map(|row| geometry.centre(0, row)[1]);
        let points = |points: &[[f64; 2]]| ([points.len() as u64, 2], points.as_flattened().to_vec());
        let ((inducing_shape, inducing_points), (path_shape, path)) = (points(self.inducing_points), points(self.path));
        let hyperparameters = self.hyperparameters.iter();
        let count = [hyperparameters.len() as u64];
        write_array(archive, "mean", "<f8", &cells, mean.iter().copied())?;
        write_array(archive, "standard_deviation", "<f8", &cells, standard_deviation.iter().copied())?;
        write_array(archive, "origin", "<f8", &[2], geometry.origin())?;
        write_array(archive, "resolution", "<f8", &[], [geometry.resolution])?;
        write_array(archive, "x", "<f8", &cells[1..], x)?;
        write_array(archive, "y", "<f8", &cells[..1], y)?;
        write_array(archive, "inducing_points", "<f8", &inducing_shape, inducing_points)?;
        write_array(archive, "path", "<f8", &path_shape, path)?;
        write_array(archive, "hyperparameters", "<f8", &count, hyperparameters.clone().map(|named| named.value))?;
        write_names(archive, "hyperparameter_names", hyperparameters.map(|named| named.name.as_str()))?;
        if let Some(axes) = self.axes {
            let [rows, columns] = cells;
            write_array(archive, "axes", "<f8", &[3, rows, columns], axes.means())?;
            write_array(archive, "axes_covariance", "<f8", &[6, rows, columns], axes.covariances())?;
        }
        if let Some(share) = self.share_below {
            write_array(archive, "share_below", "<f8", &[], [share])?;
        }
        if let Some(bias) = self.sensor_bias {
            write_array(archive, "hard_iron", "<f8", &[3], bias.hard_iron)?;
            write_array(archive, "hard_iron_sd", "<f8", &[3], bias.hard_iron_sd)?;
        }
        Ok(())
    }
}

/// Writes a file with the arrays that `write` adds to it.
pub(crate) fn write_npz(path: &Path, write: impl FnOnce(&mut Archive) -> io::Result<()>) -> Result<(), Error> {
    write_atomically(path, |file| {
        let mut archive = ZipWriter::new(file);
        write(&mut archive)?;
        archive.finish()?;
        Ok(())
    })
}

/// Writes texts as numpy's `str`, as wide as the longest.
pub(crate) fn write_names<'a>(
    archive: &mut Archive,
    name: &str,
    names: impl Iterator<Item = &'a str>,
) -> io::Result<()> {
    let names: Vec<Vec<char>> = names.map(|name| name.chars().collect()).collect();
    let width = names.iter().map(Vec::len).max().unwrap_or(0).max(1);
    write_array(archive, name, &format!("<U{width}"), &[names.len() as u64], names)
}

pub(crate) fn write_array<T: Serialize>(
    archive: &mut Archive,
    name: &str,
    type_string: &str,
    shape: &[u64],
    values: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    let type_string = type_string.parse().map_err(io::Error::other)?;
    // Without the time of writing, equal maps are equal files. What compresses is the unknown; digits of numbers hardly do, however long
    // they are searched.
    let options = FileOptions::default().last_modified_time(DateTime::default()).compression_level(Some(1));
    archive.start_file(file_name_from_array_name(name), options)?;
    // The compression is slow with eight bytes at a time.
    let mut buffer = BufWriter::new(archive);
    let array = WriteOptions::new().writer(&mut buffer);
    let mut array = array.dtype(DType::Plain(type_string)).shape(shape).begin_nd()?;
    array.extend(values)?;
    array.finish()?;
    buffer.flush()
}

#[cfg(test)]
mod tests {
    use npyz::{Deserialize, NpyFile};
    use streaming_gp::vector::Axes;
    use zip::ZipArchive;

    use super::*;
    use crate::export::strength_grid;

    /// Shape and values of an array.
    fn read<T: Deserialize>(path: &Path, name: &str) -> (Vec<u64>, Vec<T>) {
        let mut archive = ZipArchive::new(File::open(path).unwrap()).unwrap();
        let array = NpyFile::new(archive.by_name(&file_name_from_array_name(name)).unwrap()).unwrap();
        (array.shape().to_vec(), array.into_vec().unwrap())
    }

    /// The arrays of a grid without anything else.
    fn only(grid: &StrengthGrid) -> MapArrays<'_> {
        let (axes, share_below, sensor_bias) = (None, None, None);
        MapArrays { grid, inducing_points: &[], hyperparameters: &[], path: &[], axes, share_below, sensor_bias }
    }

    #[test]
    fn axes_and_hard_iron_read_back_where_there_are_some() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.npz");
        let grid = strength_grid([2, 1], vec![50.0, f64::NAN], vec![1.0, f64::NAN]);
        let axes = Axes { mean: [1.0, 2.0, 3.0], covariance: [[4.0, 5.0, 6.0], [5.0, 7.0, 8.0], [6.0, 8.0, 9.0]] };
        let axes = AxesGrid { cells: vec![Some(axes), None] };
        let bias = SensorBias {
            hard_iron: [-2.8, 1.0, 0.0],
            hard_iron_sd: [0.1, 0.2, 5.0],
            hard_iron_covariance: [[0.0; 3]; 3],
        };
        let arrays = MapArrays { axes: Some(&axes), share_below: Some(0.8), sensor_bias: Some(bias), ..only(&grid) };
        arrays.write(&path).unwrap();
        let (shape, values) = read::<f64>(&path, "axes");
        assert_eq!((shape, [values[0], values[2], values[4]]), (vec![3, 1, 2], [1.0, 2.0, 3.0]));
        assert!([1, 3, 5].iter().all(|&unknown: &usize| values[unknown].is_nan()));
        let (shape, values) = read::<f64>(&path, "axes_covariance");
        assert_eq!(shape, [6, 1, 2]);
        assert_eq!(values.iter().copied().step_by(2).collect::<Vec<_>>(), [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        assert!(values.iter().skip(1).step_by(2).all(|value| value.is_nan()));
        assert_eq!(read::<f64>(&path, "hard_iron"), (vec![3], vec![-2.8, 1.0, 0.0]));
        assert_eq!(read::<f64>(&path, "hard_iron_sd"), (vec![3], vec![0.1, 0.2, 5.0]));
        assert_eq!(read::<f64>(&path, "share_below"), (vec![], vec![0.8]));

        only(&grid).write(&path).unwrap();
        let archive = ZipArchive::new(File::open(&path).unwrap()).unwrap();
        for name in ["axes", "axes_covariance", "share_below", "hard_iron", "hard_iron_sd"] {
            assert!(!archive.file_names().any(|file| file == file_name_from_array_name(name)), "{name}");
        }
        let axes = AxesGrid { cells: vec![None] };
        let message = MapArrays { axes: Some(&axes), ..only(&grid) }.write(&path).unwrap_err().to_string();
        assert!(message.contains("expected 2 values of the axes") && message.contains("found 1"), "{message}");
    }

    #[test]
    fn every_array_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.npz");
        let mean = vec![40.0, 41.0, 42.0, 50.0, f64::NAN, 52.0];
        let grid = strength_grid([3, 2], mean, vec![1.0, 1.1, 1.2, 2.0, f64::NAN, 2.2]);
        let named = |name: &str, value| NamedValue { name: name.into(), value };
        let hyperparameters = [named("lengthscale", 0.7), named("noise variance in µT²", 2.0)];
        let (points, driven) = ([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[-1.0, -2.0]]);
        let arrays =
            MapArrays { inducing_points: &points, hyperparameters: &hyperparameters, path: &driven, ..only(&grid) };
        arrays.write(&path).unwrap();

        let (shape, mean) = read::<f64>(&path, "mean");
        assert_eq!(shape, [2, 3]);
        assert_eq!(mean[..4], [40.0, 41.0, 42.0, 50.0]);
        assert!(mean[4].is_nan());
        assert_eq!(read::<f64>(&path, "standard_deviation").1[5], 2.2);
        assert_eq!(read::<f64>(&path, "origin"), (vec![2], vec![-1.0, 2.0]));
        assert_eq!(read::<f64>(&path, "resolution"), (vec![], vec![0.5]));
        assert_eq!(read::<f64>(&path, "x"), (vec![3], vec![-0.75, -0.25, 0.25]));
        assert_eq!(read::<f64>(&path, "y"), (vec![2], vec![2.25, 2.75]));
        assert_eq!(read::<f64>(&path, "inducing_points"), (vec![3, 2], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(read::<f64>(&path, "path"), (vec![1, 2], vec![-1.0, -2.0]));
        assert_eq!(read::<f64>(&path, "hyperparameters"), (vec![2], vec![0.7, 2.0]));
        let names = read::<String>(&path, "hyperparameter_names");
        assert_eq!(names, (vec![2], vec!["lengthscale".to_owned(), "noise variance in µT²".to_owned()]));
    }

    #[test]
    fn an_empty_map_keeps_its_shapes_and_equal_maps_are_equal_files() {
        let folder = tempfile::tempdir().unwrap();
        let grid = strength_grid([0, 0], vec![], vec![]);
        let arrays = only(&grid);
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
