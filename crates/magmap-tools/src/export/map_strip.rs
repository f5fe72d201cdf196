//! Several maps side by side, on one scale: the growth of a map.

use std::path::Path;

use plotters::prelude::{FontTransform, Text};
use plotters::style::text_anchor::HPos;

use super::Error;
use super::canvas::{INK, PALE_INK, pixels, text, write_png, write_text};
use super::map_picture::{
    BAR_GAP, BAR_LABELS, BAR_WIDTH, BOTTOM, LEFT, MapPicture, SMALL_TEXT, TITLE_TEXT, Window, draw_bar,
};

/// Maps side by side.
#[derive(Clone, Debug)]
pub struct MapStrip<'a> {
    /// What is shown.
    pub title: &'a str,
    /// From left to right, each below its title and its number of inducing points. The last one determines the colours.
    pub maps: &'a [MapPicture<'a>],
}

// Lengths in pixels of the picture.
const LARGEST_PLOT: (f64, f64) = (340.0, 420.0);
const SMALLEST_PLOT: (f64, f64) = (200.0, 160.0);
const TOP: f64 = 92.0;
const RIGHT: f64 = 14.0;

impl MapStrip<'_> {
    /// Draws the means, fading to white with uncertainty, in rows of three at most.
    ///
    /// # Errors
    /// When an array does not fit its grid, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let Some(last) = self.maps.last() else { return Ok(()) };
        let scales = self.maps.iter().map(MapPicture::mean_scale).collect::<Result<Vec<_>, _>>()?;
        let scale = scales[scales.len() - 1];
        let window = Window::around(self.maps, LARGEST_PLOT, SMALLEST_PLOT);
        let columns = self.maps.len().min(3);
        let rows = self.maps.len().div_ceil(columns);
        let (step_right, step_down) = (LEFT + window.width + RIGHT, 34.0 + window.height + BOTTOM);
        let bar = columns as f64 * step_right - RIGHT + BAR_GAP;
        let (width, height) = (bar + BAR_WIDTH + BAR_LABELS, TOP - 34.0 + rows as f64 * step_down);
        write_png(path, width.round() as u32, height.round() as u32, |sheet| {
            sheet.draw(&Text::new(self.title, (pixels(LEFT), pixels(14.0)), text(TITLE_TEXT, INK)))?;
            for (i, map) in self.maps.iter().enumerate() {
                let corner = (LEFT + (i % columns) as f64 * step_right, TOP + (i / columns) as f64 * step_down);
                let title = format!("{}, M = {}", map.title, map.inducing_points.len());
                let above = (pixels(corner.0), pixels(corner.1 - 18.0));
                write_text(sheet, &title, above, (SMALL_TEXT, PALE_INK), HPos::Left, FontTransform::None)?;
                map.draw_map(sheet, corner, &window, &map.mean_theme(scale))?;
            }
            draw_bar(sheet, (bar, TOP), window.height, &last.mean_theme(scale))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::canvas::read_png;
    use crate::export::strength_grid;

    #[test]
    fn maps_stand_in_rows_of_three() {
        let grid = strength_grid([4, 4], vec![50.0; 16], vec![0.0; 16]);
        let map = MapPicture {
            grid: &grid,
            path: &[],
            inducing_points: &[[0.5, 2.5]],
            prior_standard_deviation: 10.0,
            title: "batch 1",
            subtitle: None,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("strip.png");
        let size = |count: usize| {
            MapStrip { title: "Test", maps: &vec![map.clone(); count] }.write(&path).unwrap();
            let (width, height, _) = read_png(&path);
            (width, height)
        };
        let [one, three, four, six] = [1, 3, 4, 6].map(size);
        let step = (LEFT + LARGEST_PLOT.0 + RIGHT) as usize;
        assert_eq!(three.0, one.0 + 2 * step);
        assert_eq!((three.1, four), (one.1, six));
        assert!(four.1 > three.1 && four.0 == three.0);
        std::fs::remove_file(&path).unwrap();
        MapStrip { title: "Test", maps: &[] }.write(&path).unwrap();
        assert!(!path.exists(), "no map, no picture");
    }
}
