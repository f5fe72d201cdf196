//! The methods of the papers by name, each with the one parameter that trades size for accuracy.
//!
//! A further method of the streaming model is a file with its [`Rule`](super::selection::Rule) and a variant of [`Method`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{EnumMessage, EnumString, IntoStaticStr, VariantArray};

use crate::{ConditionalVariance, Fixed, Inference, Kernel, Oips, Settings, Vips};

/// A method. The comment of each is its [summary](Method::summary).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, EnumMessage, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Method {
    /// adds inducing points until the bound is close enough to what more of them could give
    #[default]
    Vips,
    /// chooses inducing points anew, among old ones and readings, until they leave little prior variance
    ConditionalVariance,
    /// makes a reading an inducing point where it is correlated with none of them
    Oips,
    /// keeps the number of inducing points, and moves them while it learns
    Fixed,
    /// chooses as vips, and approximates by power expectation propagation
    PowerEp,
}

impl Method {
    /// All methods.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Name of the method, in snake case.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// A summary of the method, in a line.
    pub fn summary(self) -> &'static str {
        self.get_documentation().unwrap_or_default()
    }

    /// Parameter of the method.
    pub fn parameter(self) -> Parameter {
        let parameter = |symbol, meaning, above, most| Parameter { symbol, meaning, above, most };
        match self {
            Self::Vips => parameter("delta", "share of the information in a batch that may be lost", 0.0, 1.0),
            Self::ConditionalVariance => {
                let meaning = "prior variance that may be left, summed, in the unit of the targets squared";
                parameter("eta", meaning, 0.0, f64::INFINITY)
            }
            Self::Oips => {
                let meaning = "a reading whose correlation with an inducing point is at least this does not become one";
                parameter("rho", meaning, 0.0, 1.0)
            }
            Self::Fixed => parameter("M", "number of inducing points", 0.0, 20_000.0),
            Self::PowerEp => {
                parameter("alpha", "0 is nearly variational inference, 1 is expectation propagation", 0.0, 1.0)
            }
        }
    }
}

/// The parameter of a method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// The papers' letter.
    pub symbol: &'static str,
    /// Meaning of the parameter, in a line.
    pub meaning: &'static str,
    /// Values must be greater than this.
    pub above: f64,
    /// Values must not be greater than this.
    pub most: f64,
}

impl Parameter {
    /// Whether it may have this value.
    ///
    /// # Errors
    /// A value out of range; says what was expected, and of which `method`.
    pub fn check(&self, method: &str, value: Option<f64>) -> Result<(), String> {
        let Self { symbol, above, most, .. } = self;
        match value {
            Some(value) if value <= *above || value > *most => {
                let end = if most.is_finite() { format!(" and at most {most}") } else { String::new() };
                Err(format!("expected {symbol} of {method} to be more than {above}{end}"))
            }
            _ => Ok(()),
        }
    }
}

/// A method and the value of its parameter, written `NAME` or `NAME=PARAMETER`. There is always such a method, and it allows the
/// value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Named {
    method: Method,
    /// The parameter, where it is not the default.
    pub parameter: Option<f64>,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameter) = name_and_parameter(text)?;
        let expected = |_| {
            format!("expected one of {}", Method::ALL.iter().map(|method| method.name()).collect::<Vec<_>>().join(", "))
        };
        let method: Method = name.parse().map_err(expected)?;
        method.parameter().check(name, parameter)?;
        Ok(Self { method, parameter })
    }
}

/// Splits `NAME=PARAMETER` at the first `=`.
///
/// # Errors
/// Text other than a number behind it; says what was expected.
pub fn name_and_parameter(text: &str) -> Result<(&str, Option<f64>), String> {
    let Some((name, number)) = text.split_once('=') else { return Ok((text.trim(), None)) };
    match number.trim().parse::<f64>() {
        Ok(value) if value.is_finite() => Ok((name.trim(), Some(value))),
        _ => Err(format!("expected a number after {name}=")),
    }
}

impl TryFrom<String> for Named {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Named> for String {
    fn from(named: Named) -> Self {
        named.to_string()
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parameter {
            None => write!(f, "{}", self.method.name()),
            Some(parameter) => write!(f, "{}={parameter}", self.method.name()),
        }
    }
}

impl Named {
    /// The settings of the method, made from those of VIPS.
    pub fn configure<K: Kernel>(&self, settings: &mut Settings<K>, vips: &Vips) {
        let or = |default: f64| self.parameter.unwrap_or(default);
        match self.method {
            Method::Vips => settings.selection = Arc::new(Vips { delta: or(vips.delta), ..vips.clone() }),
            // What meets the paper's accuracy on all its tables, and on all but one with oips (VIPS paper, table 7).
            Method::ConditionalVariance => settings.selection = Arc::new(ConditionalVariance { tolerance: or(0.005) }),
            Method::Oips => settings.selection = Arc::new(Oips { correlation: or(0.93) }),
            Method::Fixed => settings.selection = Arc::new(Fixed { size: or(100.0).ceil() as usize }),
            Method::PowerEp => settings.inference = Inference::power_ep(or(0.5)).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_named_with_or_without_their_parameter() {
        for text in ["vips", "oips=0.9", "conditional_variance=0.005", "fixed=50", "power_ep=1"] {
            assert_eq!(text.parse::<Named>().unwrap().to_string(), text);
        }
        let rejected = |text: &str| text.parse::<Named>().unwrap_err();
        assert_eq!(rejected("vip"), "expected one of vips, conditional_variance, oips, fixed, power_ep");
        assert_eq!(rejected("oips=much"), "expected a number after oips=");
        assert_eq!(rejected("oips=inf"), "expected a number after oips=");
        assert_eq!(rejected("oips=1.1"), "expected rho of oips to be more than 0 and at most 1");
        assert_eq!(rejected("conditional_variance=-1"), "expected eta of conditional_variance to be more than 0");
    }
}
