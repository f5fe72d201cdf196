//! Every setting is obeyed or rejected by a replay.

#[path = "../../../tests/settings/other_values.rs"]
mod other_values;

use std::process::Command;

use magmap::config::{Config, Program, Setting, Value};
use tempfile::tempdir;

fn value(config: &Config, key: &str) -> Value {
    config.settings().unwrap().into_iter().find(|setting| setting.key == key).unwrap().value
}

#[test]
fn a_replay_rejects_each_setting_that_has_no_effect_in_it() {
    let (base, folder) = (other_values::base(), tempdir().unwrap());
    for (Setting { key, programs, .. }, config) in other_values::each(&base) {
        let given = format!("{key}={}", value(&config, &key));
        let context = base
            .settings()
            .unwrap()
            .into_iter()
            .filter(|setting| value(&Config::default(), &setting.key) != setting.value);
        let mut command = Command::new(env!("CARGO_BIN_EXE_magmap"));
        command.args(["replay", "nowhere"]).current_dir(folder.path());
        for setting in context {
            command.args(["--set", &format!("{}={}", setting.key, setting.value)]);
        }
        let output = command.args(["--set", &given]).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        let no_effect = format!("--set {key} has no effect in magmap replay, only in ");
        assert_eq!(message.contains(&no_effect), !programs.contains(&Program::Replay), "{message}");
        // Without a recording it fails in any case.
        assert_eq!(output.status.code(), Some(if message.contains(&no_effect) { 2 } else { 1 }), "{message}");
    }
}
