//! The output folder of a localized recording.

use std::path::{Path, PathBuf};

use super::{Error, LocateReport, LocatedDrive, LocatedStep, path_arrays};
use crate::export::file::{create_folder, holds_files};
use crate::export::json::write_json;
use crate::export::{MapPicture, NamedPath};
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
    let inducing_points = map.inducing_points();
    let map_picture = MapPicture {
        grid: &grid,
        path: &[],
        inducing_points: &inducing_points,
        changes: &[],
        prior_standard_deviation: map.prior_standard_deviation(),
        title: "Where the robot was",
        subtitle: Some(subtitle),
    };
    map_picture.write_paths(&picture, &paths(&drive.steps))?;
    Ok(vec![picture, npz, json])
}

/// The true path, if it is known, and where the robot was found, with a gap where it was lost or its place changed abruptly.
fn paths(steps: &[LocatedStep]) -> Vec<NamedPath> {
    let truth: Vec<[f64; 2]> =
        steps.iter().map(|step| step.truth.map_or([f64::NAN; 2], |pose| pose.translation.into())).collect();
    let found = |state: State| {
        let mut places: Vec<[f64; 2]> = Vec::new();
        let mut last = [f64::NAN; 2];
        for step in steps.iter().filter(|step| step.located.state != State::Lost) {
            let [x, y]: [f64; 2] = step.pose.translation.into();
            if (x - last[0]).hypot(y - last[1]) > JUMP {
                places.push([f64::NAN; 2]);
            }
            last = [x, y];
            places.push(if step.located.state == state { last } else { [f64::NAN; 2] });
        }
        places
    };
    let is_known = truth.iter().any(|[x, _]| x.is_finite());
    let truth = is_known.then_some(NamedPath { name: "truth".into(), colour: NamedPath::TRUTH, places: truth });
    let found = [
        NamedPath { name: "tracking".into(), colour: NamedPath::FOUND, places: found(State::Tracking) },
        NamedPath { name: "converging".into(), colour: NamedPath::UNSURE, places: found(State::Converging) },
    ];
    truth.into_iter().chain(found).collect()
}
