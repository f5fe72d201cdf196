//! Compares a map with the true field of a simulation.

use nalgebra::Point3;
use serde::Serialize;

use crate::simulation::World;
use magmap::field::grid::StrengthGrid;

/// Half-width of the 95 % interval of a normal distribution, in standard deviations.
const NORMAL_95: f64 = 1.959_963_984_540_054;

/// A map compared with the truth at the centres of its known cells.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
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
    pub fn within_room(grid: &StrengthGrid, world: &impl World, size: [f64; 2], constant: f64) -> Self {
        let StrengthGrid { geometry, mean, standard_deviation, .. } = grid;
        let is_in_room = |[x, y]: [f64; 2]| (0.0..=size[0]).contains(&x) && (0.0..=size[1]).contains(&y);
        let compared = |cell: usize| {
            let [x, y] = geometry.centre(cell % geometry.columns, cell / geometry.columns);
            let truth = || world.strength_at(&Point3::new(x, y, 0.0));
            (mean[cell].is_finite() && is_in_room([x, y])).then(|| (truth(), mean[cell], standard_deviation[cell]))
        };
        let cells: Vec<(f64, f64, f64)> = (0..geometry.len()).filter_map(compared).collect();
        let average =
            |of: &dyn Fn(&(f64, f64, f64)) -> f64| cells.iter().map(of).sum::<f64>() / cells.len().max(1) as f64;
        Self {
            cells: cells.len(),
            rmse: average(&|(truth, mean, _)| (truth - mean).powi(2)).sqrt(),
            constant_rmse: average(&|(truth, ..)| (truth - constant).powi(2)).sqrt(),
            coverage: average(&|(truth, mean, sd)| f64::from((truth - mean).abs() <= NORMAL_95 * sd)),
            expected_rmse: average(&|(.., sd)| sd.powi(2)).sqrt(),
        }
    }
}
