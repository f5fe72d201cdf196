//! A mask for nav2's costmap filters: where a map says little of where a robot is.
//!
//! The darkness of a cell is its standard deviation as a share of that where nothing was ever measured. `map_server` makes an
//! occupancy of it (`mode: scale`): 0 up to `free_thresh`, 100 from `occupied_thresh` on. Both can be changed in the yaml.

use std::path::Path;

use super::map_server::Layer;
use super::{Error, check_shape};
use magmap::field::grid::StrengthGrid;

/// The name of both files, without the extension.
pub const NAME: &str = "poor_localization";

/// Up to this share a place is as good as any. There the readings have explained 94 % of the variance.
const GOOD: f64 = 0.25;

/// The darkest grey. It is not black, so that no cell has occupancy 100, which nav2 takes for an obstacle.
const DARKEST: u8 = 3;

/// Writes `poor_localization.yaml` and `poor_localization.pgm` into `folder`. Unknown cells are as dark as a cell can be.
///
/// # Errors
/// Arrays that do not fit the grid, a grid without cells, and errors of the operating system.
pub fn write_costmap_filter(folder: &Path, grid: &StrengthGrid, prior_standard_deviation: f64) -> Result<(), Error> {
    check_shape(grid)?;
    let legend = format!(
        "# value: 0 where the standard deviation is {GOOD} of what it is without readings, or less; 98 where it is unknown\n\
         # no place is forbidden; occupied_thresh: 0.9 forbids unknown ones\n"
    );
    let layer = Layer { name: NAME, legend: &legend, mode: "scale", free_thresh: GOOD, occupied_thresh: 1.0 };
    let grey = |deviation: f64| {
        let share = if deviation.is_finite() { deviation / prior_standard_deviation } else { 1.0 };
        // Also where the quotient is not a number: the darkest.
        (255.0 * (1.0 - share)).round().max(f64::from(DARKEST)) as u8
    };
    layer.write(folder, &grid.geometry, &grid.standard_deviation, grey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::map_server::tests::serve;
    use crate::export::strength_grid;

    #[test]
    fn the_mask_rises_with_the_standard_deviation_and_nothing_is_forbidden() {
        let folder = tempfile::tempdir().unwrap();
        let deviations = vec![0.0, 2.5, 5.0, 7.5, 8.66, 12.0, f64::NAN, 2.4];
        let grid = strength_grid([4, 2], vec![50.0; 8], deviations);
        write_costmap_filter(folder.path(), &grid, 10.0).unwrap();
        let yaml = folder.path().join("poor_localization.yaml");
        let mask = serve(&yaml);
        // (share - 0.25) / 0.75, to half a grey: 0.0026.
        assert_eq!(mask.data, [0, 0, 33, 67, 82, 98, 98, 0]);
        assert_eq!(mask.origin, [-1.0, 2.0, 0.0]);

        // As the yaml says.
        let text = std::fs::read_to_string(&yaml).unwrap();
        std::fs::write(&yaml, text.replace("occupied_thresh: 1", "occupied_thresh: 0.9")).unwrap();
        assert_eq!(serve(&yaml).data, [0, 0, 38, 77, 95, 100, 100, 0]);
    }

    #[test]
    fn a_map_without_cells_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let result = write_costmap_filter(folder.path(), &strength_grid([0, 0], vec![], vec![]), 10.0);
        assert!(matches!(result, Err(Error::NoCells(_))));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
