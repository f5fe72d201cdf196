//! Corrected paths as a page to read, with a picture of the worst of each world.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use magmap::config::Config;
use magmap::field::raster::rasterize;
use magmap_tools::export::file::{create_folder, write_atomically};
use magmap_tools::export::{MapPicture, NamedPath};

use super::{Row, Run};
use crate::metrics::Spread;

/// The page, within the folder.
const FILE: &str = "results.md";

/// A page that is being made in a folder.
#[derive(Debug)]
pub struct Page {
    folder: PathBuf,
    text: String,
}

impl Page {
    /// A page that begins with an introduction, in Markdown.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new(folder: &Path, introduction: &str) -> anyhow::Result<Self> {
        create_folder(folder)?;
        let text = format!(
            "# The field corrects odometry\n\n{introduction}\n\nErrors of places are in metres, root mean squares after the rotation and \
             the shift that fit best; errors of the map are in microtesla.\n"
        );
        Ok(Self { folder: folder.to_owned(), text })
    }

    /// Adds the runs through one world with the same kind of errors, and a picture of the worst of them.
    ///
    /// # Errors
    /// When the picture cannot be written.
    pub fn add(&mut self, rows: &[Row], worst: &Run) -> anyhow::Result<()> {
        let Row { world, errors, seed, odometry, smoothed, .. } = &worst.row;
        let (name, drift) = (world.name(), errors.drift);
        let file = format!("{name}-{drift}.png");
        draw(worst, &self.folder.join(&file))?;
        // Writing to a string cannot fail.
        let _ = write!(
            self.text,
            "\n## {name}, a drift of {drift} rad/m\n\n{}\n![The path by odometry, the true and the smoothed one]({file})\n\n\
             *Seed {seed}, the worst: {odometry:.3} m by odometry, {smoothed:.3} m smoothed.*\n",
            table(rows)
        );
        Ok(())
    }

    /// Writes the page, and returns its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(self) -> anyhow::Result<PathBuf> {
        let path = self.folder.join(FILE);
        write_atomically(&path, |file| file.write_all(self.text.as_bytes()))?;
        Ok(path)
    }
}

/// Every run, and the medians.
fn table(rows: &[Row]) -> String {
    let mut text =
        "| seed | odometry | online | smoothed | worst place | in_95 | map | map of the true path | seconds |\n\
                    |---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    let columns: [fn(&Row) -> f64; 8] = [
        |row| row.odometry,
        |row| row.online,
        |row| row.smoothed,
        |row| row.worst,
        |row| row.in_95,
        |row| row.map_rmse,
        |row| row.map_rmse_true_path,
        |row| row.seconds,
    ];
    let mut line = |name: &str, values: [f64; 8]| {
        let cells = values.map(|value| format!(" {value:.3} ")).join("|");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {name} |{cells}|");
    };
    for row in rows {
        line(&row.seed.to_string(), columns.map(|column| column(row)));
    }
    line("median", columns.map(|column| Spread::of(rows.iter().map(column)).median));
    text
}

/// Draws the paths over the map of the smoothed one.
fn draw(run: &Run, file: &Path) -> anyhow::Result<()> {
    let Run { row, map, odometry, smoothed, truth } = run;
    let named =
        |name: &str, colour, places: &[[f64; 2]]| NamedPath { name: name.into(), colour, places: places.into() };
    let paths = [
        named("odometry", NamedPath::UNSURE, odometry),
        named("truth", NamedPath::TRUTH, truth),
        named("smoothed", NamedPath::FOUND, smoothed),
    ];
    let picture = MapPicture {
        grid: &rasterize(&Config::default().raster, map, smoothed)?,
        path: &[],
        inducing_points: &map.inducing_points(),
        changes: &[],
        prior_standard_deviation: map.prior_standard_deviation(),
        title: &row.world.name(),
        subtitle: None,
    };
    Ok(picture.write_paths(file, &paths)?)
}
