//! The path of a robot that was located in a map, over the map.

use std::path::Path;

use plotters::prelude::{BLACK, Color, PathElement, RGBColor, WHITE};

use super::Error;
use super::canvas::{Area, Drawn, line, part, pixels};
use super::map_picture::{BOTTOM, LEFT, MapPicture, SUBTITLE_MIDDLE, TOP, Window, strokes, write_entry};

/// Colour of the path while the robot was sure of its place.
const SURE: RGBColor = RGBColor(213, 94, 0);
/// Colour of the path while it was not.
const UNSURE: RGBColor = RGBColor(255, 170, 220);
/// Width of a path, in pixels of the picture.
const WIDTH: f64 = 2.0;

impl MapPicture<'_> {
    /// Draws the mean of the map, the path, which is the true one and may be empty, in black, and the path that was found in a colour
    /// that shows how sure the robot was. `found` says where it was found to be, not a number where it was not, and whether it was
    /// sure. Inducing points are counted, not drawn. 1000 pixels wide at most.
    ///
    /// # Errors
    /// When an array does not fit the grid, or the file cannot be written.
    pub fn write_path(&self, path: &Path, found: &[([f64; 2], bool)]) -> Result<(), Error> {
        let mut theme = self.mean_theme()?;
        theme.path = BLACK.mix(0.9);
        let places: Vec<[f64; 2]> = self.path.iter().copied().chain(found.iter().map(|(place, _)| *place)).collect();
        let window = Window::of(&MapPicture { path: &places, ..self.clone() });
        let without_points = MapPicture { inducing_points: &[], ..self.clone() };
        Self::write_sheet(path, &window, &theme, |sheet| {
            self.draw_title(sheet, &theme)?;
            draw_legend(sheet, LEFT + window.width, !self.path.is_empty())?;
            without_points.draw_map(sheet, &window, &theme)?;
            draw_found(sheet, &window, found)
        })
    }
}

fn draw_found<'a>(sheet: &Area<'a>, window: &Window, found: &[([f64; 2], bool)]) -> Drawn<'a> {
    let area = part(sheet, (0.0, TOP), (LEFT + window.width, window.height + BOTTOM));
    let mut chart = window.chart(&area)?;
    for (is_sure, colour) in [(false, UNSURE), (true, SURE)] {
        let places: Vec<[f64; 2]> =
            found.iter().map(|&(place, sure)| if sure == is_sure { place } else { [f64::NAN; 2] }).collect();
        chart.draw_series(strokes(&places).map(|stroke| PathElement::new(stroke, line(colour, WIDTH))))?;
    }
    Ok(())
}

/// Draws the legend, which ends at `right`.
fn draw_legend<'a>(sheet: &Area<'a>, mut right: f64, has_truth: bool) -> Drawn<'a> {
    let truth = has_truth.then_some(("truth", BLACK));
    for (name, colour) in [("converging", UNSURE), ("tracking", SURE)].into_iter().chain(truth) {
        right = write_entry(sheet, name, right)? - 8.0;
        let ends = [right - 22.0, right].map(|x| (pixels(x), pixels(SUBTITLE_MIDDLE)));
        sheet.draw(&PathElement::new(ends, line(WHITE, WIDTH)))?;
        sheet.draw(&PathElement::new(ends, line(colour, WIDTH)))?;
        right -= 40.0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::canvas::read_png;
    use crate::export::strength_grid;

    #[test]
    fn paths_are_where_the_map_says_and_have_the_colours_of_their_states() {
        // 10 m by 10 m from (-1, 2) on.
        let grid = strength_grid([20, 20], vec![50.0; 400], vec![0.0; 400]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("path.png");
        let truth = [[0.0, 3.0], [8.0, 3.0]];
        let found =
            [([0.0, 7.0], false), ([4.0, 7.0], false), ([f64::NAN; 2], false), ([4.0, 7.0], true), ([8.0, 7.0], true)];
        let map = MapPicture {
            grid: &grid,
            path: &truth,
            inducing_points: &[],
            prior_standard_deviation: 10.0,
            title: "Test",
            subtitle: None,
        };
        map.write_path(&file, &found).unwrap();
        let (width, _, pixels) = read_png(&file);
        let plot = 780.0;
        let at = |x: f64, y: f64| {
            let (right, down) = ((x + 1.0) / 10.0, 1.0 - (y - 2.0) / 10.0);
            pixels[(TOP + plot * down) as usize * width + (LEFT + plot * right) as usize]
        };
        assert_eq!([at(2.0, 7.0), at(6.0, 7.0)], [[UNSURE.0, UNSURE.1, UNSURE.2], [SURE.0, SURE.1, SURE.2]]);
        assert!(at(4.0, 3.0).iter().all(|channel| *channel < 60), "{:?}", at(4.0, 3.0));
        assert_eq!(at(9.0, 7.0), at(9.0, 3.0), "the map");
    }
}
