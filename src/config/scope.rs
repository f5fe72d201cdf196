//! Scopes of settings: the map, its stream, or one run of a program. The scope alone decides when a setting may change.

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
    pub(super) fn programs(self) -> &'static [Program] {
        use Program::*;
        match self {
            Self::Map => &[Mapper, Replay, Localizer, Locate, Bench],
            Self::Intake => &[Mapper, Replay, Localizer, Locate, Calibrate, Bench],
            Self::Stream => &[Mapper, Replay, Bench],
            Self::Output => &[Mapper, Replay, Localizer, Locate, Export, Bench],
            Self::Source => &[Mapper, Replay, Localizer, Locate, Calibrate],
            Self::Run => &[Mapper, Replay],
        }
    }
}

/// A program that settings have an effect in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::VariantArray)]
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
    /// Calibrating the magnetometer by a recording.
    #[strum(to_string = "magmap calibrate")]
    Calibrate,
    /// Converting a recording.
    #[strum(to_string = "magmap convert")]
    Convert,
    /// Describing a recording.
    #[strum(to_string = "magmap info")]
    Info,
    /// Merging maps.
    #[strum(to_string = "magmap merge")]
    Merge,
    /// Writing a map for other programs.
    #[strum(to_string = "magmap export")]
    Export,
    /// Measuring what a computer can do.
    #[strum(to_string = "magmap bench")]
    Bench,
    /// Experiments.
    #[strum(to_string = "magmap-evaluate")]
    Laboratory,
}

/// The programs in which settings have an effect, in words; none where maps are made.
pub(super) fn in_words(programs: &[Program]) -> Option<String> {
    let has_no_effect = |program: &Program| !programs.contains(program);
    let is_for_others = !programs.is_empty() && [Program::Mapper, Program::Replay].iter().any(has_no_effect);
    is_for_others.then(|| format!("Only for {}.", list(programs)))
}

/// Their names.
pub(super) fn list(programs: &[Program]) -> String {
    let names: Vec<String> = programs.iter().map(Program::to_string).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}
