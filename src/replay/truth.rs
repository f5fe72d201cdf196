//! Compares a map with the true field of a simulation.

use nalgebra::Point3;
use serde::Serialize;

use crate::field::grid::FieldGrid;
use crate::simulation::World;

/// Half-width of the 95 % interval of a normal distribution, in standard deviations.
const NORMAL_95: f64 = 1.959_963_984_540_054;

/// A map compared with the truth at the centres of its known cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TruthComparison {
    /// Cells compared.
    pub cells: usize,
    /// Root mean square error of the map's mean, in microtesla.
    pub rmse: f64,
    /// Root mean square error of a constant, in microtesla.
    pub constant_rmse: f64,
    /// Fraction of the cells whose truth lies within the map's 95 % interval.
    pub coverage: f64,
    /// Root mean square of the map's standard deviation, in microtesla: its expected error.
    pub expected_rmse: f64,
}

impl TruthComparison {
    /// Compares the known cells of a room from (0, 0) to `size` on the floor of `world`; and the `constant` (microtesla), such as the
    /// mean of the readings, that a map has to beat.
    pub fn within_room(grid: &FieldGrid, world: &impl World, size: [f64; 2], constant: f64) -> Self {
        let mut sums = Self::default();
        for row in 0..grid.geometry.rows {
            for column in 0..grid.geometry.columns {
                let [x, y] = grid.geometry.centre(column, row);
                let index = row * grid.geometry.columns + column;
                let (mean, deviation) = (grid.mean[index], grid.standard_deviation[index]);
                let in_room = (0.0..=size[0]).contains(&x) && (0.0..=size[1]).contains(&y);
                if in_room && mean.is_finite() {
                    sums.add(mean, deviation, world.strength_at(&Point3::new(x, y, 0.0)), constant);
                }
            }
        }
        sums.averaged()
    }

    fn add(&mut self, mean: f64, deviation: f64, truth: f64, constant: f64) {
        self.cells += 1;
        self.rmse += (truth - mean).powi(2);
        self.constant_rmse += (truth - constant).powi(2);
        self.coverage += f64::from((truth - mean).abs() <= NORMAL_95 * deviation);
        self.expected_rmse += deviation.powi(2);
    }

    fn averaged(self) -> Self {
        let cells = self.cells.max(1) as f64;
        Self {
            cells: self.cells,
            rmse: (self.rmse / cells).sqrt(),
            constant_rmse: (self.constant_rmse / cells).sqrt(),
            coverage: self.coverage / cells,
            expected_rmse: (self.expected_rmse / cells).sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nalgebra::Vector3;

    use super::*;
    use crate::field::grid::GridGeometry;
    use crate::field::quantity::Quantity;
    use crate::simulation::DipoleWorld;

    #[test]
    fn known_cells_of_the_room_are_compared_and_no_others() {
        // 50 microtesla everywhere; cells at x = -0.5 (outside), 0.5, 1.5, 2.5 (unknown).
        let world = DipoleWorld::new(Vector3::new(30.0, 0.0, 40.0), Vec::new());
        let geometry = GridGeometry { resolution: 1.0, first_column: -1, first_row: 0, columns: 4, rows: 1 };
        let grid = FieldGrid {
            quantity: Quantity::Strength,
            geometry,
            mean: vec![0.0, 51.0, 47.0, f64::NAN],
            standard_deviation: vec![1.0, 1.0, 1.0, f64::NAN],
        };
        let found = TruthComparison::within_room(&grid, &world, [3.0, 1.0], 52.0);
        assert_eq!((found.cells, found.coverage, found.constant_rmse), (2, 0.5, 2.0));
        assert!((found.rmse - 5.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(found.expected_rmse, 1.0);
    }

    #[test]
    fn an_empty_map_compares_nothing() {
        let geometry = GridGeometry { resolution: 1.0, first_column: 0, first_row: 0, columns: 1, rows: 1 };
        let found = TruthComparison::within_room(
            &FieldGrid::unknown(geometry, Quantity::Strength),
            &DipoleWorld::new(Vector3::x(), vec![]),
            [1.0; 2],
            0.0,
        );
        assert_eq!(found, TruthComparison::default());
    }
}
