//! Colours of the cells of a picture.

use magmap::display::colour::{MAGMA, Rgb, VIRIDIS, WHITE, mix, opacity};
use magmap::display::scale::Scale;
use magmap::field::grid::StrengthGrid;

/// Colours of the mean, faded to white by the uncertainty; row-major from the lower left cell, unknown cells white.
pub(super) fn mean_colours(grid: &StrengthGrid, prior_standard_deviation: f64, scale: Scale) -> Vec<Rgb> {
    let colour = |(&mean, &deviation): (&f64, &f64)| match mean.is_finite() {
        true => mix(WHITE, VIRIDIS.colour(scale.fraction(mean)), opacity(deviation, prior_standard_deviation)),
        false => WHITE,
    };
    grid.mean.iter().zip(&grid.standard_deviation).map(colour).collect()
}

/// Colours of the standard deviation; row-major from the lower left cell, unknown cells white.
pub(super) fn uncertainty_colours(grid: &StrengthGrid, scale: Scale) -> Vec<Rgb> {
    let colour = |&value: &f64| if value.is_finite() { MAGMA.colour(scale.fraction(value)) } else { WHITE };
    grid.standard_deviation.iter().map(colour).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::strength_grid;

    fn row(mean: Vec<f64>, standard_deviation: Vec<f64>) -> StrengthGrid {
        strength_grid([mean.len(), 1], mean, standard_deviation)
    }

    #[test]
    fn a_known_cell_has_the_colour_of_its_mean_and_fades_with_its_uncertainty() {
        let grid = row(vec![40.0, 60.0, 60.0, f64::NAN], vec![0.0, 0.0, 6.0, f64::NAN]);
        let colours = mean_colours(&grid, 12.0, Scale { low: 40.0, high: 60.0 });
        assert_eq!(colours[0], VIRIDIS.colour(0.0));
        assert_eq!(colours[1], VIRIDIS.colour(1.0));
        // Three quarters of yellow (253, 231, 37), a quarter of white.
        assert_eq!(colours[2], [254, 237, 92]);
        assert_eq!(colours[3], WHITE);
    }

    #[test]
    fn uncertainty_runs_from_dark_to_light_and_unknown_is_white() {
        let grid = row(vec![0.0, 0.0, f64::NAN], vec![0.0, 8.0, f64::NAN]);
        let colours = uncertainty_colours(&grid, Scale { low: 0.0, high: 8.0 });
        assert_eq!(colours, [MAGMA.colour(0.0), MAGMA.colour(1.0), WHITE]);
    }
}
