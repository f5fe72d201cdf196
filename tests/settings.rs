//! Every setting is obeyed or rejected wherever a map is used. The tests of replays and of ROS parameters do the same for theirs.

#[path = "settings/other_values.rs"]
mod other_values;

use magmap::config::{Config, Error, Scope, Setting, Value};
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
        (Scope::Source, &["topics.magnetometer", "frames.pose_source"]),
        (
            Scope::Run,
            &["tiles.memory", "tiles.threads", "store.checkpoint_batches", "node.queue", "localization.alpha1"],
        ),
    ] {
        keys.iter().for_each(|key| assert_eq!(scope(key), expected, "{key}"));
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
