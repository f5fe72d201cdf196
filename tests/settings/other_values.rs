//! Every setting with another valid value.

use super::{Config, Setting, Value};

/// Settings under which each of them has an effect.
pub fn base() -> Config {
    let mut config = Config::default();
    let settings = ["model.field=vector", "model.likelihood=student_t", "tiles.size=8", "frames.map=odom"];
    config.apply_overrides(&settings).unwrap();
    config
}

/// Each setting, and the settings with another valid value of it. Fails where none is found.
pub fn each(base: &Config) -> Vec<(Setting, Config)> {
    let settings = base.settings().unwrap().into_iter();
    settings
        .map(|setting| {
            let other = candidates(&setting.value).into_iter().find_map(|value| {
                let mut config = base.clone();
                config.apply_values(&[(setting.key.clone(), value)], "another value").ok()?;
                (config != *base).then_some(config)
            });
            let key = &setting.key;
            let other = other.unwrap_or_else(|| panic!("{key}: expected another valid value, found none; add one"));
            (setting, other)
        })
        .collect()
}

/// Values that a setting may have instead of one.
fn candidates(value: &Value) -> Vec<Value> {
    const TEXTS: [&str; 12] = [
        "other",
        "strength",
        "gaussian",
        "matern32",
        "oips=0.9",
        "upper",
        "transforms",
        "always",
        "reliable",
        "pose_graph",
        "published",
        "recording#1",
    ];
    match value {
        Value::Boolean(value) => vec![Value::Boolean(!value)],
        Value::Integer(value) => [value + 1, value - 1].map(Value::Integer).into(),
        Value::Float(value) => [1.1 * value, 0.9 * value, value + 0.25, value + 1.0].map(Value::Float).into(),
        Value::Array(values) => {
            let numbers = values.iter().filter_map(Value::as_float);
            vec![Value::Array(numbers.map(|number| Value::Float(1.1 * number + 0.1)).collect())]
        }
        Value::String(_) => TEXTS.map(Value::from).into(),
        Value::Datetime(_) | Value::Table(_) => Vec::new(),
    }
}
