//! Every setting is obeyed or rejected wherever a map is used. The tests of programs and of ROS parameters do the same for theirs.

#[path = "settings/other_values.rs"]
mod other_values;

use std::collections::BTreeSet;

use magmap::config::{Config, Error, Program, Scope, Setting, Value};
use magmap::field::model::FieldModel;
use magmap::localization::settings_for;

fn value(config: &Config, key: &str) -> Value {
    config.settings().unwrap().into_iter().find(|setting| setting.key == key).unwrap().value
}

/// The scopes of a few settings whose scopes matter most: nothing else says what they should be.
#[test]
fn scopes_are_what_users_expect() {
    let settings = Config::default().settings().unwrap();
    let scope = |key: &str| settings.iter().find(|setting| setting.key == key).unwrap().scope;
    for (expected, keys) in [
        (Scope::Map, &["model.field", "model.kernel", "model.mean", "tiles.size", "vector.hard_iron"][..]),
        (Scope::Intake, &["sensor.hard_iron", "sensor.position", "synchronizer.max_gap"]),
        (Scope::Stream, &["gates.max_speed", "averaging.spacing", "selection.delta", "model.initial.noise"]),
        (Scope::Output, &["raster.resolution", "node.map_rate", "node.map_name"]),
        (Scope::Source, &["topics.magnetometer", "frames.pose_source", "localization.alpha1"]),
        (Scope::Run, &["tiles.memory", "tiles.threads", "store.checkpoint_batches", "node.queue"]),
    ] {
        keys.iter().for_each(|key| assert_eq!(scope(key), expected, "{key}"));
    }
}

/// The programs of settings whose declaration would be believed if it were wrong.
#[test]
fn programs_are_those_that_use_a_setting() {
    use Program::{Bench, Calibrate, Convert, Export, Info, Localizer, Locate, Mapper, Merge, Replay};
    let settings = Config::default().settings().unwrap();
    let of = |program| settings.iter().filter(move |setting| setting.programs.contains(&program));
    let keys = |program| of(program).map(|setting| setting.key.as_str()).collect::<Vec<_>>();
    let mount = ["sensor.orientation", "sensor.override_transforms", "sensor.position"];
    assert_eq!(keys(Convert).into_iter().collect::<BTreeSet<_>>(), mount.into());
    let described =
        ["frames.map", "frames.pose_source", "model.field", "slam.enabled", "topics.magnetometer", "topics.odometry"];
    assert_eq!(keys(Info).into_iter().collect::<BTreeSet<_>>(), described.into_iter().chain(mount).collect());
    assert!(keys(Export).iter().all(|key| key.starts_with("raster.")));
    assert!(keys(Merge).iter().all(|key| key.starts_with("localization.")));
    let programs = |key: &str| settings.iter().find(|setting| setting.key == key).unwrap().programs;
    // A robot that was switched off is located in its map.
    assert_eq!(programs("localization.seed"), [Mapper, Replay, Localizer, Locate, Merge, Bench]);
    // Then the observations of the map are the steps.
    assert_eq!(programs("localization.update_min_d"), [Localizer, Locate, Bench]);
    assert_eq!(programs("localization.map"), [Localizer]);
    assert_eq!(programs("frames.map"), [Mapper, Replay, Localizer, Calibrate, Info]);
    assert_eq!(programs("node.earlier_maps"), [Mapper, Replay]);
    assert_eq!(programs("slam.trajectory"), [Replay]);
    assert_eq!(programs("slam.path_topic"), [Mapper]);
}

#[test]
fn a_file_may_be_for_other_programs_whose_settings_are_checked_but_contradict_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("robot.toml");
    let load = |base: Config, program, text: &str| {
        std::fs::write(&path, text).unwrap();
        base.with_file_for(program, &path)
    };
    // The poses of another SLAM, for a replay: a node does not correct its path by them.
    let node = load(Config::default(), Program::Mapper, "slam.trajectory = 'final.tum'").unwrap();
    assert!(!node.corrects_path() && node.map_frame().is_empty());
    // A robot that corrects its path, in a map of strengths that it made before.
    let mut of_strengths = Config::default();
    of_strengths.apply_overrides(&["model.field=strength"]).unwrap();
    let localizer = load(of_strengths.clone(), Program::Localizer, "slam.enabled = true\nraster.margin = 2").unwrap();
    of_strengths.raster.margin = 2.0;
    assert_eq!(localizer, of_strengths);
    for (text, expected) in [
        ("\nnode.map_rate = 0", "line 2: node.map_rate: expected a finite number above 0"),
        ("node.map_rat = 1", "unknown key node.map_rat; did you mean node.map_rate?"),
        ("node.map_rate = 'fast'", "line 1: node.map_rate: expected a number"),
    ] {
        let error = load(Config::default(), Program::Replay, text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_map_is_continued_if_what_is_fixed_for_its_life_is_the_same() {
    let base = other_values::base();
    let map = FieldModel::new(&base);
    for (Setting { key, scope, .. }, config) in other_values::each(&base) {
        for checked in [map.check(&config), map.state().check(&config)] {
            match checked {
                Ok(()) => assert!(!scope.is_fixed_for_a_map(), "{key}"),
                Err(Error::SettingDiffers { key: differing, made_with, configured }) => {
                    let expected = [value(&base, &key).to_string(), value(&config, &key).to_string()];
                    assert_eq!((scope, &differing, [made_with, configured]), (Scope::Map, &key, expected));
                }
                Err(error) => panic!("{key}: {error}"),
            }
        }
    }
    // What has no effect may differ.
    let mut other = Config::default();
    other.apply_overrides(&["model.degrees_of_freedom=3", "vector.hard_iron=0"]).unwrap();
    FieldModel::new(&Config::default()).check(&other).unwrap();
}

#[test]
fn a_localizer_uses_the_settings_of_its_map_unless_they_are_of_a_source_or_of_a_run() {
    let base = other_values::base();
    for (Setting { key, scope, .. }, made_with) in other_values::each(&base) {
        let used = value(&settings_for(&made_with).unwrap(), &key);
        let is_of_the_user = matches!(scope, Scope::Source | Scope::Run);
        let expected = if is_of_the_user { Config::default() } else { made_with };
        assert_eq!(used, value(&expected, &key), "{key}");
    }
}
