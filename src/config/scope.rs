//! Scopes of settings: the map, its stream, or one run of a program. The scope alone decides when a setting may change.

use super::declare::Part;
use super::keys::parts;
use super::{Config, Error, Likelihood, Mapped, Setting};

/// The scope of a setting.
///
/// | | continuing a map | resuming an interrupted replay | while a node maps | a localizer uses the value of its map |
/// | --- | --- | --- | --- | --- |
/// | `Map` | the same | the same | fixed | yes |
/// | `Intake` | may differ | the same | fixed | yes |
/// | `Stream` | may differ | the same | may change | yes |
/// | `Output` | may differ | may differ | may change | yes |
/// | `Source` | may differ | the same | fixed | no |
/// | `Run` | may differ | may differ | fixed | no |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Properties of the map: fixed for its life.
    Map,
    /// How readings are calibrated and located.
    Intake,
    /// Learning from now on.
    Stream,
    /// How results are drawn, published and saved.
    Output,
    /// The source of the measurements.
    Source,
    /// How one run of a program works. What is learnt does not depend on it.
    Run,
}

impl Scope {
    /// Whether it is the same for the life of a map.
    pub fn is_fixed_for_a_map(self) -> bool {
        self == Self::Map
    }

    /// Whether it is the same for a whole recording, whose parts would be mapped differently otherwise.
    pub fn is_fixed_for_a_recording(self) -> bool {
        matches!(self, Self::Map | Self::Intake | Self::Stream | Self::Source)
    }

    /// Whether a node can change it while it maps.
    pub fn is_changeable(self) -> bool {
        matches!(self, Self::Stream | Self::Output)
    }

    /// Whether those who use a finished map use the value that it was made with, unless another is given.
    pub fn comes_with_a_map(self) -> bool {
        !matches!(self, Self::Source | Self::Run)
    }

    /// When it may change, in words.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Map => "Fixed for the life of a map.",
            Self::Intake | Self::Source => "Fixed for a whole recording, and while a node runs.",
            Self::Stream => "Fixed for a whole recording; may change while a node runs.",
            Self::Output => "May change at any time.",
            Self::Run => "Fixed while a program runs.",
        }
    }

    /// The programs in which settings of this scope have an effect, unless their declaration names others.
    fn programs(self) -> &'static [Program] {
        match self {
            Self::Stream | Self::Run => &[Program::Mapper, Program::Replay],
            _ => &[Program::Mapper, Program::Replay, Program::Localizer, Program::Locate],
        }
    }
}

/// A program that settings have an effect in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum Program {
    /// The node that maps.
    #[strum(to_string = "magmap_node")]
    Mapper,
    /// Mapping a recording.
    #[strum(to_string = "magmap replay")]
    Replay,
    /// The node that locates the robot.
    #[strum(to_string = "magmap_localizer")]
    Localizer,
    /// Locating the robot of a recording.
    #[strum(to_string = "magmap locate")]
    Locate,
    /// Experiments.
    #[strum(to_string = "magmap-evaluate")]
    Laboratory,
}

impl Program {
    /// Rejects a setting, or a section, that is given to this program alone and has no effect in it. In a file it may be for others.
    ///
    /// # Errors
    /// [`Error::WithoutEffect`].
    pub fn check_effect(self, key: &str) -> Result<(), Error> {
        let programs = programs(&parts(key));
        if programs.contains(&self) {
            return Ok(());
        }
        Err(Error::WithoutEffect { key: key.to_owned(), program: self, others: list(programs) })
    }
}

/// The scope of a setting, or of a section.
pub(super) fn scope(parts: &[&'static Part]) -> Scope {
    // Every section has one.
    parts.iter().rev().find_map(|part| part.scope.first()).copied().unwrap_or(Scope::Map)
}

/// The programs in which a setting, or a section, has an effect.
pub(super) fn programs(parts: &[&'static Part]) -> &'static [Program] {
    let named = parts.iter().rev().map(|part| part.programs).find(|programs| !programs.is_empty());
    named.unwrap_or_else(|| scope(parts).programs())
}

/// The programs in which settings have an effect, in words; none where maps are made.
pub(super) fn in_words(programs: &[Program]) -> Option<String> {
    let has_no_effect = |program: &Program| !programs.contains(program);
    let is_for_others = !programs.is_empty() && [Program::Mapper, Program::Replay].iter().any(has_no_effect);
    is_for_others.then(|| format!("Only for {}.", list(programs)))
}

fn list(programs: &[Program]) -> String {
    programs.iter().map(Program::to_string).collect::<Vec<_>>().join(" and ")
}

impl Config {
    /// Rejects `given` settings if one whose scope `is_fixed` differs from these, with which a map was made, and has an effect on it.
    ///
    /// # Errors
    /// [`Error::SettingDiffers`] with the first.
    pub fn check_unchanged(&self, given: &Config, is_fixed: impl Fn(Scope) -> bool) -> Result<(), Error> {
        let mut pairs = self.settings()?.into_iter().zip(given.settings()?);
        let has_effect = |key: &str| self.has_effect(key) || given.has_effect(key);
        let differs = |(made_with, given): &(Setting, Setting)| {
            is_fixed(given.scope) && made_with.value != given.value && has_effect(&given.key)
        };
        pairs.find(differs).map_or(Ok(()), |(made_with, given)| {
            let (made_with, configured) = (made_with.value.to_string(), given.value.to_string());
            Err(Error::SettingDiffers { key: given.key, made_with, configured })
        })
    }

    /// The default settings, with these for those whose scope `is_kept`.
    ///
    /// # Errors
    /// [`Error::Invalid`] where they contradict the defaults.
    pub fn keep_only(&self, is_kept: impl Fn(Scope) -> bool) -> Result<Config, Error> {
        let kept = self.settings()?.into_iter().filter(|setting| is_kept(setting.scope));
        let mut config = Config::default();
        config.apply_values(
            &kept.map(|setting| (setting.key, setting.value)).collect::<Vec<_>>(),
            "the map's settings",
        )?;
        Ok(config)
    }

    /// Whether a setting has an effect on what is mapped, under the others.
    fn has_effect(&self, key: &str) -> bool {
        match key.split_once('.') {
            Some(("model", "degrees_of_freedom")) => self.model.likelihood == Likelihood::StudentT,
            Some(("vector", _)) => self.model.field == Mapped::Vector,
            _ => true,
        }
    }
}
