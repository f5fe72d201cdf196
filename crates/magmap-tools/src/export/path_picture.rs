//! Paths over a map.

use std::path::Path;

use plotters::prelude::{PathElement, RGBColor, WHITE};

use super::Error;
use super::canvas::{Area, Drawn, line, part, pixels};
use super::map_picture::{BOTTOM, LEFT, MapPicture, SUBTITLE_MIDDLE, TOP, Window, strokes, write_entry};
use magmap::display::colour::Rgb;

/// Width of a path, in pixels of the picture.
const WIDTH: f64 = 2.0;

/// A path of a picture, divided where it is not finite.
#[derive(Clone, Debug)]
pub struct NamedPath {
    /// Name of the path in the legend.
    pub name: String,
    /// Colour of the path.
    pub colour: Rgb,
    /// Places of the path, in metres.
    pub places: Vec<[f64; 2]>,
}

impl NamedPath {
    /// Colour of what was measured or is true.
    pub const TRUTH: Rgb = [0, 0, 0];
    /// Colour of what was found.
    pub const FOUND: Rgb = [213, 94, 0];
    /// Colour of what is less certain.
    pub const UNSURE: Rgb = [255, 170, 220];
}

impl MapPicture<'_> {
    /// Draws the mean of the map and these paths, the later ones over the earlier ones, instead of its own. Inducing points are counted,
    /// not drawn. 1000 pixels wide at most.
    ///
    /// # Errors
    /// When an array does not fit the grid, or the file cannot be written.
    pub fn write_paths(&self, file: &Path, paths: &[NamedPath]) -> Result<(), Error> {
        let theme = self.mean_theme()?;
        let places: Vec<[f64; 2]> = paths.iter().flat_map(|path| path.places.iter().copied()).collect();
        let window = Window::of(&MapPicture { path: &places, ..self.clone() });
        let map = MapPicture { inducing_points: &[], path: &[], changes: &[], ..self.clone() };
        Self::write_sheet(file, &window, &theme, |sheet| {
            self.draw_title(sheet, &theme)?;
            draw_legend(sheet, LEFT + window.width, paths)?;
            map.draw_map(sheet, &window, &theme)?;
            let area = part(sheet, (0.0, TOP), (LEFT + window.width, window.height + BOTTOM));
            let mut chart = window.chart(&area)?;
            for path in paths {
                let style = line(rgb(path), WIDTH);
                chart.draw_series(strokes(&path.places).map(|stroke| PathElement::new(stroke, style)))?;
            }
            Ok(())
        })
    }
}

fn rgb(path: &NamedPath) -> RGBColor {
    let [red, green, blue] = path.colour;
    RGBColor(red, green, blue)
}

/// Draws the legend, which ends at `right`.
fn draw_legend<'a>(sheet: &Area<'a>, mut right: f64, paths: &[NamedPath]) -> Drawn<'a> {
    for path in paths.iter().rev() {
        right = write_entry(sheet, &path.name, right)? - 8.0;
        let ends = [right - 22.0, right].map(|x| (pixels(x), pixels(SUBTITLE_MIDDLE)));
        sheet.draw(&PathElement::new(ends, line(WHITE, WIDTH)))?;
        sheet.draw(&PathElement::new(ends, line(rgb(path), WIDTH)))?;
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
    fn paths_are_where_the_map_says_and_have_their_colours() {
        // 10 m by 10 m from (-1, 2) on.
        let grid = strength_grid([20, 20], vec![50.0; 400], vec![0.0; 400]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("path.png");
        let path = |colour, places: &[[f64; 2]]| NamedPath { name: "path".into(), colour, places: places.to_vec() };
        let paths = [
            path(NamedPath::TRUTH, &[[0.0, 3.0], [8.0, 3.0]]),
            path(NamedPath::UNSURE, &[[0.0, 7.0], [3.0, 7.0], [f64::NAN; 2], [5.0, 7.0], [8.0, 7.0]]),
            path(NamedPath::FOUND, &[[5.0, 7.0], [8.0, 7.0]]),
        ];
        let map = MapPicture {
            grid: &grid,
            path: &[],
            inducing_points: &[],
            changes: &[],
            prior_standard_deviation: 10.0,
            title: "Test",
            subtitle: None,
        };
        map.write_paths(&file, &paths).unwrap();
        let (width, _, pixels) = read_png(&file);
        let plot = 780.0;
        let at = |x: f64, y: f64| {
            let (right, down) = ((x + 1.0) / 10.0, 1.0 - (y - 2.0) / 10.0);
            pixels[(TOP + plot * down) as usize * width + (LEFT + plot * right) as usize]
        };
        assert_eq!([at(2.0, 7.0), at(6.0, 7.0)], [NamedPath::UNSURE, NamedPath::FOUND]);
        assert_eq!([at(4.0, 3.0), at(4.0, 7.0)], [NamedPath::TRUTH, at(8.5, 5.0)], "the map where there is no path");
    }
}
