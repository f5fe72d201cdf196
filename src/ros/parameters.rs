//! Settings as ROS parameters: every key of the configuration under its dotted name, over those of the file that `config` names.

use r2r::indexmap::IndexMap;
use r2r::{Parameter, ParameterValue, RosParams};
use toml::Value;

use super::UsageError;
use crate::config::{Config, Program, Setting};

/// The parameter that names the configuration file.
const CONFIG: &str = "config";

/// The parameter that says whether time is simulated; r2r obeys it.
const SIMULATED_TIME: &str = "use_sim_time";

/// Prefix of the parameters that override the quality of service; ROS tools may set them, this node does not use them.
const QUALITY_OVERRIDES: &str = "qos_overrides.";

/// Keys of this section are parameters of the localizer without its name: `alpha1` for `localization.alpha1`, as in AMCL.
const LOCALIZATION: &str = "localization.";

/// The parameters of a node: the settings that have an effect in it.
pub(super) struct Parameters {
    program: Program,
    file: String,
    /// Whether time is simulated.
    pub(super) simulated_time: bool,
    /// The settings.
    pub(super) config: Config,
    /// Changed settings, until they are taken.
    pub(super) changed: Option<Config>,
}

impl Parameters {
    /// The parameters of the mapper given at startup, over the file and the defaults.
    ///
    /// # Errors
    /// A file that cannot be read, unknown keys, parameters without effect, wrong types and values out of range.
    pub(super) fn from_given(given: &IndexMap<String, Parameter>) -> anyhow::Result<Self> {
        Self::over(Config::default(), Program::Mapper, given)
    }

    /// The parameters of the localizer given at startup, over the file and the settings in `base`.
    ///
    /// # Errors
    /// The errors of [`from_given`](Self::from_given).
    pub(super) fn of_localizer(base: Config, given: &IndexMap<String, Parameter>) -> anyhow::Result<Self> {
        Self::over(base, Program::Localizer, given)
    }

    fn over(base: Config, program: Program, given: &IndexMap<String, Parameter>) -> anyhow::Result<Self> {
        let file = match given.get(CONFIG).map(|parameter| &parameter.value) {
            None | Some(ParameterValue::NotSet) => String::new(),
            Some(ParameterValue::String(path)) => path.clone(),
            Some(other) => return Err(wrong_type(CONFIG, other).into()),
        };
        let simulated_time = match given.get(SIMULATED_TIME).map(|parameter| &parameter.value) {
            None | Some(ParameterValue::NotSet) => false,
            Some(ParameterValue::Bool(simulated)) => *simulated,
            Some(other) => return Err(wrong_type(SIMULATED_TIME, other).into()),
        };
        let mut config = if file.is_empty() { base } else { base.with_file_for(program, &file)? };
        let settings = config.settings()?;
        let key = |parameter: &str| {
            let named = settings.iter().find(|setting| name(program, &setting.key) == parameter);
            named.map_or(parameter, |setting| &setting.key).to_owned()
        };
        let ours = given
            .iter()
            .filter(|(name, _)| *name != CONFIG && *name != SIMULATED_TIME && !name.starts_with(QUALITY_OVERRIDES));
        let values = ours.map(|(name, parameter)| Ok((key(name), to_toml(name, &parameter.value)?)));
        let values = values.collect::<anyhow::Result<Vec<_>>>()?;
        values.iter().try_for_each(|(key, _)| program.check_effect(key))?;
        config.apply_values(&values, "parameters")?;
        Ok(Self { program, file, simulated_time, config, changed: None })
    }

    /// The settings with one of them changed, if it may change while the node runs.
    fn with(&self, name: &str, value: &ParameterValue) -> r2r::Result<Config> {
        let rejected = |msg: String| r2r::Error::ParameterValueConv { name: name.to_owned(), msg };
        let mut config = self.config.clone();
        let value = to_toml(name, value).map_err(|error| rejected(error.to_string()))?;
        let setting = self.setting(name);
        if name != CONFIG && name != SIMULATED_TIME {
            let key = setting.as_ref().map_or(name, |setting| &setting.key);
            config
                .apply_values(&[(key.to_owned(), value)], "parameter")
                .map_err(|error| rejected(error.to_string()))?;
            self.program.check_effect(key).map_err(|error| rejected(error.to_string()))?;
        }
        if self.program != Program::Mapper || !setting.is_some_and(|setting| setting.scope.is_changeable()) {
            return Err(rejected("it cannot change while the node runs; set it at startup".into()));
        }
        Ok(config)
    }

    /// The settings that are parameters, each with its name.
    fn settings(&self) -> impl Iterator<Item = (String, Setting)> {
        let program = self.program;
        // What was parsed can be written.
        let settings = self.config.settings().unwrap_or_default().into_iter();
        let ours = settings.filter(move |setting| setting.programs.contains(&program));
        ours.map(move |setting| (name(program, &setting.key).to_owned(), setting))
    }

    /// The setting of the parameter of this name.
    fn setting(&self, name: &str) -> Option<Setting> {
        self.settings().find_map(|(other, setting)| (other == name).then_some(setting))
    }
}

/// The name of the parameter for a key.
fn name(program: Program, key: &str) -> &str {
    let stripped = if program == Program::Localizer { key.strip_prefix(LOCALIZATION) } else { None };
    stripped.unwrap_or(key)
}

impl RosParams for Parameters {
    // Called once: r2r needs static descriptions, which are leaked.
    fn register_parameters(
        &mut self,
        _: &str,
        _: Option<Parameter>,
        parameters: &mut IndexMap<String, Parameter>,
    ) -> r2r::Result<()> {
        // The settings already include the given ones.
        parameters.clear();
        let mut add = |name: &str, value, description: String| {
            parameters.insert(name.to_owned(), Parameter { value, description: description.leak() });
        };
        let file = ParameterValue::String(self.file.clone());
        add(CONFIG, file, "A TOML file with settings; parameters override it.".into());
        add(SIMULATED_TIME, ParameterValue::Bool(self.simulated_time), "Whether time comes from /clock.".into());
        for (name, Setting { value, description, .. }) in self.settings() {
            from_toml(&value).into_iter().for_each(|value| add(&name, value, description.clone()));
        }
        Ok(())
    }

    fn get_parameter(&mut self, name: &str) -> r2r::Result<ParameterValue> {
        let found = match name {
            CONFIG => Some(ParameterValue::String(self.file.clone())),
            SIMULATED_TIME => Some(ParameterValue::Bool(self.simulated_time)),
            _ => self.setting(name).and_then(|setting| from_toml(&setting.value)),
        };
        found.ok_or_else(|| r2r::Error::InvalidParameterName { name: name.to_owned() })
    }

    fn set_parameter(&mut self, name: &str, value: &ParameterValue) -> r2r::Result<()> {
        self.config = self.with(name, value)?;
        self.changed = Some(self.config.clone());
        let value = to_toml(name, value).map_or_else(|_| "unset".into(), |value| value.to_string());
        log::info!("parameter {name} is now {value}");
        Ok(())
    }

    fn check_parameter(&self, name: &str, value: &ParameterValue) -> r2r::Result<()> {
        self.with(name, value).map(|_| ())
    }
}

/// A parameter has a type that no setting has.
fn wrong_type(name: &str, found: &ParameterValue) -> UsageError {
    let expected = "a boolean, a number, text or a list of numbers";
    UsageError(format!("parameter {name}: expected {expected}, found {}", found.type_name()))
}

fn to_toml(name: &str, value: &ParameterValue) -> Result<Value, UsageError> {
    Ok(match value {
        ParameterValue::Bool(value) => Value::Boolean(*value),
        ParameterValue::Integer(value) => Value::Integer(*value),
        ParameterValue::Double(value) => Value::Float(*value),
        ParameterValue::String(value) => Value::String(value.clone()),
        ParameterValue::IntegerArray(values) => Value::Array(values.iter().copied().map(Value::Integer).collect()),
        ParameterValue::DoubleArray(values) => Value::Array(values.iter().copied().map(Value::Float).collect()),
        other => return Err(wrong_type(name, other)),
    })
}

fn from_toml(value: &Value) -> Option<ParameterValue> {
    Some(match value {
        Value::Boolean(value) => ParameterValue::Bool(*value),
        Value::Integer(value) => ParameterValue::Integer(*value),
        Value::Float(value) => ParameterValue::Double(*value),
        Value::String(value) => ParameterValue::String(value.clone()),
        Value::Array(values) => ParameterValue::DoubleArray(values.iter().filter_map(Value::as_float).collect()),
        Value::Datetime(_) | Value::Table(_) => return None,
    })
}

#[cfg(test)]
#[path = "../../tests/settings/other_values.rs"]
mod other_values;

#[cfg(test)]
mod tests {
    use super::*;

    fn given(values: &[(&str, ParameterValue)]) -> anyhow::Result<Parameters> {
        let parameter = |(name, value): &(&str, ParameterValue)| (name.to_string(), Parameter::new(value.clone()));
        Parameters::from_given(&values.iter().map(parameter).collect())
    }

    #[test]
    fn parameters_override_the_file_and_the_file_overrides_the_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("robot.toml");
        std::fs::write(&path, "selection.delta = 0.1\nraster.margin = 3.0\n").unwrap();
        let parameters = given(&[
            ("config", ParameterValue::String(path.display().to_string())),
            ("use_sim_time", ParameterValue::Bool(true)),
            ("raster.margin", ParameterValue::Integer(2)),
            ("sensor.position", ParameterValue::DoubleArray(vec![0.1, 0.0, 0.3])),
        ])
        .unwrap();
        let config = parameters.config;
        assert_eq!((config.selection.delta, config.raster.margin, config.batch.max_path), (0.1, 2.0, 5.0));
        assert_eq!(config.sensor.position, [0.1, 0.0, 0.3]);
    }

    #[test]
    fn the_localizer_has_the_names_of_amcl_and_keeps_the_settings_of_the_map() {
        let mut base = Config::default();
        base.gates.max_speed = 7.0;
        let given = [
            ("alpha1", ParameterValue::Double(0.25)),
            ("initial_pose.x", ParameterValue::Integer(3)),
            ("localization.alpha2", ParameterValue::Double(0.125)),
            ("topics.odometry", ParameterValue::String("wheels".into())),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), Parameter::new(value))).into_iter().collect();
        let mut parameters = Parameters::of_localizer(base.clone(), &given).unwrap();
        let Config { localization, gates, topics, .. } = &parameters.config;
        assert_eq!((localization.alpha1, localization.alpha2, localization.initial_pose.x), (0.25, 0.125, 3.0));
        assert_eq!((gates.max_speed, topics.odometry.as_str()), (7.0, "wheels"));
        assert_eq!(parameters.get_parameter("alpha1").unwrap(), ParameterValue::Double(0.25));
        let mut registered = IndexMap::new();
        parameters.register_parameters("", None, &mut registered).unwrap();
        for name in [
            "alpha1",
            "alpha4",
            "min_particles",
            "max_particles",
            "update_min_d",
            "update_min_a",
            "recovery_alpha_slow",
            "set_initial_pose",
            "initial_pose.yaw",
            "tf_broadcast",
            "transform_tolerance",
            "gates.max_speed",
        ] {
            assert!(registered.contains_key(name), "{name}");
        }
        assert!(!registered.contains_key("localization.alpha1"));
        assert!(parameters.set_parameter("alpha1", &ParameterValue::Double(0.5)).is_err(), "it runs");
        let wrong = [("alpha1".to_owned(), Parameter::new(ParameterValue::Double(-1.0)))].into_iter().collect();
        let message = Parameters::of_localizer(base, &wrong).err().unwrap().to_string();
        assert_eq!(message, "parameters: localization.alpha1: expected a finite number, 0 or above, found -1.0");
    }

    #[test]
    fn invalid_parameters_are_rejected_with_key_and_reason() {
        let message = |name, value| given(&[(name, value)]).err().unwrap().to_string();
        let unknown = message("selection.dela", ParameterValue::Double(0.1));
        assert_eq!(unknown, "parameters: unknown key selection.dela; did you mean selection.delta?");
        let impossible = message("selection.delta", ParameterValue::Double(2.0));
        assert_eq!(impossible, "parameters: selection.delta: expected more than 0 and less than 1, found 2.0");
        let missing = message("config", ParameterValue::String("/nowhere/robot.toml".into()));
        assert!(missing.starts_with("cannot read the configuration /nowhere/robot.toml"), "{missing}");
        let typed = message("config", ParameterValue::Bool(true));
        assert!(typed.contains("parameter config") && typed.contains("found boolean"), "{typed}");
    }

    #[test]
    fn only_some_parameters_change_while_the_node_runs() {
        let mut parameters = given(&[]).unwrap();
        parameters.set_parameter("selection.delta", &ParameterValue::Double(0.1)).unwrap();
        assert_eq!(parameters.changed.take().unwrap().selection.delta, 0.1);
        assert_eq!(parameters.get_parameter("selection.delta").unwrap(), ParameterValue::Double(0.1));
        assert!(parameters.changed.take().is_none());
        for (name, value) in [
            ("model.mean", ParameterValue::Double(1.0)),
            ("use_sim_time", ParameterValue::Bool(true)),
            ("selection.delta", ParameterValue::Double(1.0)),
            ("selection.nothing", ParameterValue::Double(1.0)),
        ] {
            assert!(parameters.set_parameter(name, &value).is_err(), "{name}");
            assert!(parameters.check_parameter(name, &value).is_err(), "{name}");
        }
        assert!(parameters.changed.take().is_none());
    }

    #[test]
    fn every_setting_is_obeyed_or_rejected_at_startup_and_while_the_node_runs() {
        let (base, folder) = (other_values::base(), tempfile::tempdir().unwrap());
        let path = folder.path().join("settings.toml");
        for (Setting { key, scope, programs, .. }, config) in other_values::each(&base) {
            let written = config.settings().unwrap().into_iter().find(|setting| setting.key == key).unwrap().value;
            let value = from_toml(&written).unwrap();
            for program in [Program::Mapper, Program::Localizer] {
                let name = name(program, &key);
                let given = IndexMap::from([(name.to_owned(), Parameter::new(value.clone()))]);
                let (started, has_effect) =
                    (Parameters::over(base.clone(), program, &given), programs.contains(&program));
                match started {
                    Ok(started) => assert!(has_effect && started.config == config, "{key} in {program}"),
                    Err(error) => {
                        assert!(!has_effect && error.to_string().contains("has no effect in"), "{key}: {error}");
                    }
                }
                std::fs::write(&path, format!("{key} = {written}")).unwrap();
                let file = ParameterValue::String(path.display().to_string());
                let file = IndexMap::from([(CONFIG.to_owned(), Parameter::new(file))]);
                let from_file = Parameters::over(base.clone(), program, &file).unwrap().config;
                assert_eq!(from_file, if has_effect { config.clone() } else { base.clone() }, "{key} in {program}");
                let mut running = Parameters::over(base.clone(), program, &IndexMap::new()).unwrap();
                assert_eq!(running.get_parameter(name).is_ok(), has_effect, "{key} in {program}");
                let is_changeable = has_effect && scope.is_changeable() && program == Program::Mapper;
                assert_eq!(running.set_parameter(name, &value).is_ok(), is_changeable, "{key} in {program}");
                assert_eq!(running.changed, is_changeable.then(|| config.clone()), "{key} in {program}");
            }
        }
    }

    #[test]
    fn every_setting_with_an_effect_is_a_parameter_with_a_description() {
        let mut parameters = given(&[]).unwrap();
        let mut registered = IndexMap::new();
        parameters.register_parameters("", None, &mut registered).unwrap();
        let settings = Config::default().settings().unwrap();
        let ours = settings.iter().filter(|setting| setting.programs.contains(&Program::Mapper));
        assert_eq!(registered.len(), ours.count() + 2);
        assert!(registered.values().all(|parameter| !parameter.description.is_empty()));
        assert_eq!(registered["sensor.position"].value, ParameterValue::DoubleArray(vec![0.0; 3]));
    }
}
