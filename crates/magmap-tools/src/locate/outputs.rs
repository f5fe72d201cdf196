//! The output folder of a localized recording.

use std::path::{Path, PathBuf};

use super::{Error, LocateReport, LocatedDrive, LocatedStep, path_arrays};
use crate::export::MapPicture;
use crate::export::file::{create_folder, holds_files};
use crate::export::json::write_json;
use magmap::config::Config;
use magmap::field::map::FieldMap;
use magmap::field::raster::rasterize;
use magmap::localization::State;

/// The path is not joined across larger distances between updates, in metres.
const JUMP: f64 = 0.3;

/// Writes the outputs into a folder, which must be empty unless `force`; returns the files. The subtitle is written on the picture.
///
/// # Errors
/// [`Error::NotEmpty`], a map that cannot be drawn, and outputs that cannot be written.
pub fn write(
    folder: &Path,
    force: bool,
    config: &Config,
    map: &FieldMap,
    drive: &LocatedDrive,
    report: &LocateReport,
    subtitle: &str,
) -> Result<Vec<PathBuf>, Error> {
    create_folder(folder)?;
    if !force && holds_files(folder)? {
        return Err(Error::NotEmpty(folder.to_owned()));
    }
    let [picture, npz, json] = ["path.png", "path.npz", "report.json"].map(|name| folder.join(name));
    write_json(&json, report)?;
    path_arrays::write(&npz, &drive.steps)?;
    let grid = rasterize(&config.raster, map, &map.extent)?;
    let truth: Vec<[f64; 2]> =
        drive.steps.iter().map(|step| step.truth.map_or([f64::NAN; 2], |pose| pose.translation.into())).collect();
    let found = found_path(&drive.steps);
    let inducing_points = map.inducing_points();
    let map_picture = MapPicture {
        grid: &grid,
        path: if report.truth.is_some() { &truth } else { &[] },
        inducing_points: &inducing_points,
        prior_standard_deviation: map.prior_standard_deviation(),
        title: "Where the robot was",
        subtitle: Some(subtitle),
    };
    map_picture.write_path(&picture, &found)?;
    Ok(vec![picture, npz, json])
}

/// Path of the robot and whether it was sure, with a gap where it was lost or its place changed abruptly.
fn found_path(steps: &[LocatedStep]) -> Vec<([f64; 2], bool)> {
    let mut found: Vec<([f64; 2], bool)> = Vec::new();
    for step in steps.iter().filter(|step| step.located.state != State::Lost) {
        let [x, y]: [f64; 2] = step.pose.translation.into();
        let is_jump = |(last, _): &([f64; 2], bool)| (x - last[0]).hypot(y - last[1]) > JUMP;
        if found.last().is_some_and(is_jump) {
            found.push(([f64::NAN; 2], false));
        }
        found.push(([x, y], step.located.state == State::Tracking));
    }
    found
}
