//! The macros in which settings are declared: name, type, default, range and meaning of each, declared once.

use super::Problem;
use super::scope::{Program, Scope};

/// A section, a setting or a value to choose from, as its documentation names it.
#[derive(Debug)]
pub(super) struct Part {
    pub name: &'static str,
    /// Documentation, line by line.
    pub meaning: &'static str,
    /// Scope; none where the scope of its section applies.
    pub scope: &'static [Scope],
    /// The programs in which it has an effect; none where they are those of its section, or of its scope.
    pub programs: &'static [Program],
    /// The parts inside: the settings of a section, the choices of a setting.
    pub parts: &'static [Part],
}

/// A type of settings: a section, or a value.
pub(super) trait Described {
    /// The settings of a section, or the values to choose from.
    const PARTS: &'static [Part] = &[];

    /// Adds what is out of range; `key` is the full key of this section.
    fn check(&self, _key: &str, _problems: &mut Vec<Problem>) {}
}

macro_rules! values {
    ($($Type:ty),+) => { $(impl Described for $Type {})+ };
}

values!(bool, u32, u64, usize, f64, String, [f64; 3], [f64; 9]);
values!(streaming_gp::kernel::Shape, streaming_gp::methods::Named);

/// A section's type; each setting may have a range: a function of its value that fails with what it expects.
///
/// `#[scope(...)]` says what a setting, or every setting of a section, belongs to; `#[programs(...)]` says where it has an effect, if that is
/// elsewhere than its [`Scope`] says. Attributes of a setting replace those of its section.
macro_rules! section {
    ($(#[doc = $about:literal])+ #[serde($($rule:tt)+)] $Section:ident {
        $(
            $(#[doc = $meaning:literal])+ $(#[scope($scope:ident)])? $(#[programs($($program:ident),+)])?
            $name:ident: $Type:ty $(=> $range:expr)?,
        )+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde($($rule)+)]
        pub struct $Section { $($(#[doc = $meaning])+ pub $name: $Type,)+ }

        impl Described for $Section {
            const PARTS: &'static [Part] = &[$(Part {
                name: stringify!($name),
                meaning: concat!($($meaning, "\n"),+),
                scope: &[$(Scope::$scope)?],
                programs: &[$($(Program::$program),+)?],
                parts: <$Type as Described>::PARTS,
            }),+];

            fn check(&self, key: &str, problems: &mut Vec<Problem>) {
                $(
                    let name = format!("{key}{}", stringify!($name));
                    $(if let Err(expected) = $range(&self.$name) {
                        problems.push(Problem::wrong(&name, expected, &self.$name));
                    })?
                    self.$name.check(&format!("{name}."), problems);
                )+
            }
        }
    };
}

/// All sections, each with its settings: `name: type = default => range`.
macro_rules! sections {
    ($(
        $(#[doc = $about:literal])+ #[scope($scope:ident)] $(#[programs($($program:ident),+)])?
        $section:ident: $Section:ident {
            $(
                $(#[doc = $meaning:literal])+ $(#[scope($own:ident)])? $(#[programs($($other:ident),+)])?
                $name:ident: $Type:ty = $default:expr $(=> $range:expr)?,
            )+
        }
    )+) => {
        section! {
            /// All settings. `Config::default()` is what `config/default.toml` lists.
            #[serde(default, deny_unknown_fields)]
            Config {
                $($(#[doc = $about])+ #[scope($scope)] $(#[programs($($program),+)])? $section: $Section,)+
            }
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($section: $Section::default(),)+ }
            }
        }

        $(
            section! {
                $(#[doc = $about])+
                #[serde(default, deny_unknown_fields)]
                $Section {
                    $(
                        $(#[doc = $meaning])+ $(#[scope($own)])? $(#[programs($($other),+)])?
                        $name: $Type $(=> $range)?,
                    )+
                }
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($name: $default,)+ }
                }
            }
        )+
    };
}

/// The values that a setting chooses from, each with its name in TOML.
macro_rules! choices {
    ($($Type:ident of $key:literal { $($(#[doc = $meaning:literal])+ $Choice:ident = $name:literal,)+ })+) => { $(
        #[doc = concat!("The values of `", $key, "`.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $Type { $($(#[doc = $meaning])+ #[serde(rename = $name)] $Choice,)+ }

        impl Described for $Type {
            const PARTS: &'static [Part] =
                &[$(Part { name: $name, meaning: concat!($($meaning, "\n"),+), scope: &[], programs: &[], parts: &[] }),+];
        }
    )+ };
}

pub(super) use {choices, section, sections};
