#[path = "../../../../../tests/settings/other_values.rs"]
mod other_values;

use std::convert::Infallible;
use std::fs;

use nalgebra::Isometry3;

use super::*;
use crate::recording::Loss;
use crate::recording::drive_writer::messages;
use crate::replay::Replay;
use crate::simulation::{Route, Simulation, demo};
use magmap::config::{Setting, Value};
use magmap::mapping::mapper::SourceId;
use magmap::sensing::intake::Intake;

fn source(name: &str) -> Source {
    let id = SourceId { name: name.into(), fingerprint: name.into() };
    let mut intake = Intake::new(&Config::default());
    intake.name_map("odom");
    Source {
        name: name.into(),
        id,
        about: serde_json::Value::Null,
        intake,
        loss: Loss::default(),
        is_frame_shared: false,
        truth: Vec::new(),
    }
}

/// The folder of a replay of a drive, interrupted after this share of it.
fn replayed(config: &Config, share: f64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let simulation = Simulation { route: Route::LawnMower { spacing: 0.6 }, duration: 15.0, ..demo() };
    let drive = simulation.drive(simulation.world().unwrap()).unwrap().map(|sample| sample.measurement);
    let drive: Vec<_> = drive.collect();
    let replay = Replay::start(config, source("drive"), folder.path(), Options::default(), |_| {}).unwrap();
    let stop = replay.stop_signal();
    let until = (share * drive.len() as f64) as usize;
    let part = drive.into_iter().enumerate().map(|(index, measurement)| {
        if index == until {
            stop.stop();
        }
        measurement
    });
    let part = messages::<Infallible>(Isometry3::identity(), part);
    assert_eq!(replay.run(part).unwrap().report.interrupted, share < 1.0);
    folder
}

/// The map that a replay with these settings continues in a copy of a folder.
fn resumed(config: &Config, drive: &str, folder: &Path) -> Result<Mapper, Error> {
    let copy = tempfile::tempdir().unwrap();
    fs::copy(folder.join(FILE_NAME), copy.path().join(FILE_NAME)).unwrap();
    let options = Options { resume: true, ..Options::default() };
    let start = ReplayStart::find(config, &source(drive), copy.path(), &options, &mut |_| {})?;
    assert!(start.resumed.is_some());
    Ok(start.mapper)
}

#[track_caller]
fn assert_is_of(resumed: Result<Mapper, Error>, [made_with, config]: [&Config; 2], is_fixed: bool, setting: &Setting) {
    let key = &setting.key;
    let value = |config: &Config| config.settings().unwrap().into_iter().find(|other| other.key == *key).unwrap().value;
    let (made_with, configured) = (value(made_with), value(config));
    match resumed {
        Ok(mapper) => assert!(!is_fixed && **mapper.config() == *config, "{key} is accepted"),
        Err(error) => {
            let expected = format!("{key} is {configured}, but the map was made with {made_with}; set {key} = ");
            assert!(is_fixed && error.to_string().starts_with(&expected), "{key}: {error}");
        }
    }
}

#[test]
fn every_setting_is_obeyed_or_rejected_where_a_replay_is_resumed_or_a_map_continued() {
    let mut base = other_values::base();
    base.learning.max_evaluations = 0;
    let folder = replayed(&base, 0.3);
    let each = other_values::each(&base);
    for (setting, config) in &each {
        let is_fixed = setting.scope.is_fixed_for_a_recording();
        assert_is_of(resumed(config, "drive", folder.path()), [&base, config], is_fixed, setting);
    }
    let folder = replayed(&base, 1.0);
    for (setting, config) in &each {
        let continued = resumed(config, "another drive", folder.path());
        if config.corrects_path() {
            // These corrections are of one drive.
            let error = continued.err().unwrap().to_string();
            assert!(error.contains("no other drive can be added to a map whose path is corrected"), "{error}");
            continue;
        }
        assert_is_of(continued, [&base, config], setting.scope.is_fixed_for_a_map(), setting);
    }
}
