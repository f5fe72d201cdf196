//! Every setting is obeyed, ignored or rejected by every program; those of the nodes are also ROS parameters, which have a test of their own.

#[path = "../../../tests/settings/other_values.rs"]
mod other_values;

use super::common;

use std::fs;

use clap::Parser;
use magmap::config::{Config, Program, Setting, Value};
use magmap_tools::cli::SettingsArguments;
use strum::VariantArray;
use tempfile::{TempDir, tempdir};

/// A command line of nothing but settings.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: SettingsArguments,
}

fn load(program: Program, base: &Config, [option, given]: [&str; 2]) -> Result<Config, String> {
    let line = Line::parse_from(["magmap", option, given]);
    line.settings.load_for(program, base.clone()).map_err(|error| error.to_string())
}

fn value(config: &Config, key: &str) -> Value {
    config.settings().unwrap().into_iter().find(|setting| setting.key == key).unwrap().value
}

#[test]
fn a_program_obeys_a_setting_or_ignores_it_in_a_file_and_rejects_it_on_the_command_line() {
    let (base, folder) = (other_values::base(), tempdir().unwrap());
    let path = folder.path().join("settings.toml");
    for (Setting { key, programs, .. }, config) in other_values::each(&base) {
        let value = value(&config, &key);
        fs::write(&path, format!("{key} = {value}")).unwrap();
        for &program in Program::VARIANTS {
            let from_file = load(program, &base, ["--config", path.to_str().unwrap()]);
            let given = load(program, &base, ["--set", &format!("{key}={value}")]);
            if programs.contains(&program) {
                assert_eq!([&from_file, &given], [&Ok(config.clone()); 2], "{key} in {program}");
            } else {
                assert_eq!(from_file.as_ref(), Ok(&base), "{key} in {program}");
                let message = given.unwrap_err();
                let expected = format!("--set {key} has no effect in {program}, only in ");
                assert!(message.starts_with(&expected), "{message}");
            }
        }
    }
}

#[track_caller]
fn expect(code: i32, arguments: &[&str], folder: &TempDir) -> (String, String) {
    common::expect(code, common::command(env!("CARGO_BIN_EXE_magmap"), arguments, folder.path()))
}

#[test]
fn every_command_with_settings_rejects_those_without_effect_in_it() {
    let folder = tempdir().unwrap();
    expect(0, &["simulate", "--out", "bag", "--size", "3x3", "--lane-spacing", "0.6", "--duration", "20"], &folder);
    expect(0, &["replay", "bag", "--out", "map", "--set", "learning.max_evaluations=0"], &folder);
    let commands = [
        (Program::Replay, &["replay", "bag", "--out", "new"][..]),
        (Program::Replay, &["demo", "--out", "new"]),
        (Program::Locate, &["locate", "bag", "--map", "map", "--out", "new"]),
        (Program::Calibrate, &["calibrate", "bag"]),
        (Program::Convert, &["convert", "drive", "--out", "new"]),
        (Program::Info, &["info", "bag"]),
        (Program::Merge, &["merge", "map", "map", "--out", "new.magmap"]),
        (Program::Export, &["export", "map", "--format", "csv", "--out", "new"]),
        (Program::Bench, &["bench"]),
    ];
    for (program, arguments) in commands {
        let (_, err) = expect(2, &[arguments, &["--set", "node.map_rate=2"]].concat(), &folder);
        assert!(
            err.contains(&format!("--set node.map_rate has no effect in {program}, only in magmap_node;")),
            "{err}"
        );
    }
    let (help, _) = expect(0, &["--help"], &folder);
    let listed = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    // What continues a line is indented further.
    let lines = listed.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let names = lines.filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty());
    let names: Vec<&str> = names.collect();
    assert!(names.len() > commands.len(), "{help}");
    for name in names.into_iter().filter(|name| *name != "help") {
        let takes_settings = expect(0, &[name, "--help"], &folder).0.contains("--set <KEY=VALUE>");
        assert_eq!(takes_settings, commands.iter().any(|(_, arguments)| arguments[0] == name), "{name}");
    }
}

#[test]
fn a_table_rejects_settings_of_topics_and_of_the_mount() {
    let folder = tempdir().unwrap();
    expect(0, &["simulate", "--out", "floor.csv", "--size", "3x3", "--duration", "5"], &folder);
    for (key, value) in [("topics.odometry", "odom"), ("sensor.override_transforms", "true")] {
        let (_, err) = expect(2, &["info", "floor.csv", "--set", &format!("{key}={value}")], &folder);
        assert!(
            err.contains(&format!("--set {key} has no effect on floor.csv, a survey (CSV); leave it out")),
            "{err}"
        );
    }
    expect(0, &["info", "floor.csv", "--set", "frames.map=map"], &folder);
}
