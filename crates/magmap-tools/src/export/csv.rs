//! The known cells of a map as a table.

use std::io::{self, Write};
use std::path::Path;

use super::file::write_atomically;
use super::{Error, check_axes, check_shape};
use magmap::display::AxesGrid;
use magmap::field::grid::StrengthGrid;

/// Writes a header and a row for each known cell, from the lower left one on: its centre in metres, mean and standard deviation, and
/// where there are axes those and their standard deviations, to a tenth of a millimetre and of a nanotesla. Quantities and units are
/// named as in a survey.
///
/// # Errors
/// Arrays that do not fit the grid, and errors of the operating system.
pub fn write_csv(path: &Path, grid: &StrengthGrid, axes: Option<&AxesGrid>) -> Result<(), Error> {
    check_shape(grid)?;
    axes.map_or(Ok(()), |axes| check_axes(grid, axes))?;
    write_atomically(path, |file| {
        write!(file, "x_m,y_m,mean_uT,standard_deviation_uT")?;
        if axes.is_some() {
            write!(file, ",bx_uT,by_uT,bz_uT")?;
            write!(file, ",bx_standard_deviation_uT,by_standard_deviation_uT,bz_standard_deviation_uT")?;
        }
        writeln!(file)?;
        for cell in (0..grid.mean.len()).filter(|&cell| grid.mean[cell].is_finite()) {
            let [x, y] = grid.geometry.centre(cell % grid.geometry.columns, cell / grid.geometry.columns);
            write_numbers(file, [x, y, grid.mean[cell], grid.standard_deviation[cell]])?;
            if let Some(axes) = axes.and_then(|axes| axes.cells[cell].as_ref()) {
                let deviations = [0, 1, 2].map(|axis| axes.covariance[axis][axis].sqrt());
                write!(file, ",")?;
                write_numbers(file, axes.mean)?;
                write!(file, ",")?;
                write_numbers(file, deviations)?;
            }
            writeln!(file)?;
        }
        Ok(())
    })
}

fn write_numbers<const N: usize>(file: &mut impl Write, numbers: [f64; N]) -> io::Result<()> {
    write!(file, "{}", numbers.map(|number| format!("{number:.4}")).join(","))
}
