//! The methods of the papers by name, each with the one parameter that trades size for accuracy.
//!
//! A further method of the streaming model is a file with its [`Rule`](super::selection::Rule) and one entry of [`methods`]. One of them
//! is another model, the [dual](super::dual_memory) one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::inference::Inference;
use super::kernel::{Kernel, Stationary};
use super::selection::conditional_variance::ConditionalVariance;
use super::selection::fixed::Fixed;
use super::selection::oips::Oips;
use super::selection::vips::Vips;
use super::streaming::Settings;

/// A method.
pub struct Method<K: Kernel> {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Its parameter.
    pub parameter: Parameter,
    /// The model that it is a method of.
    pub engine: Engine<K>,
}

/// A model, and what a method makes of it.
#[derive(Clone, Copy, Debug)]
pub enum Engine<K: Kernel> {
    /// The streaming model, whose settings for VIPS, which are given too, are changed to those of the method; with its default where
    /// there is no parameter.
    Streaming(fn(&mut Settings<K>, &Vips, Option<f64>)),
    /// The dual model.
    DualMemory,
}

/// The parameter of a method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// The papers' letter.
    pub symbol: &'static str,
    /// What it means, in a line.
    pub meaning: &'static str,
    /// It must be greater than this.
    pub above: f64,
    /// It must not be greater than this.
    pub most: f64,
}

impl Parameter {
    /// Whether it may have this value.
    ///
    /// # Errors
    /// What was expected instead; `method` appears in it.
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

/// All methods.
pub fn methods<K: Kernel>() -> Vec<Method<K>> {
    vec![
        Method {
            name: "vips",
            summary: "adds inducing points until the bound is close enough to what more of them could give",
            parameter: Parameter {
                symbol: "delta",
                meaning: "share of the information in a batch that may be lost",
                above: 0.0,
                most: 1.0,
            },
            engine: Engine::Streaming(|settings, vips, delta| {
                settings.selection = Arc::new(Vips { delta: delta.unwrap_or(vips.delta), ..vips.clone() });
            }),
        },
        Method {
            name: "conditional_variance",
            summary: "chooses inducing points anew, among old ones and readings, until they leave little prior variance",
            parameter: Parameter {
                symbol: "eta",
                meaning: "prior variance that may be left, summed, in the unit of the targets squared",
                above: 0.0,
                most: f64::INFINITY,
            },
            // What meets the paper's accuracy on all its tables (VIPS paper, table 7).
            engine: Engine::Streaming(|settings, _, eta| {
                settings.selection = Arc::new(ConditionalVariance { tolerance: eta.unwrap_or(0.005) });
            }),
        },
        Method {
            name: "oips",
            summary: "makes a reading an inducing point where it is correlated with none of them",
            parameter: Parameter {
                symbol: "rho",
                meaning: "correlation with an inducing point from which on a reading becomes none",
                above: 0.0,
                most: 1.0,
            },
            // What meets the paper's accuracy on all its tables but one (VIPS paper, table 7).
            engine: Engine::Streaming(|settings, _, rho| {
                settings.selection = Arc::new(Oips { correlation: rho.unwrap_or(0.93) });
            }),
        },
        Method {
            name: "fixed",
            summary: "keeps the number of inducing points, and moves them while it learns",
            parameter: Parameter { symbol: "M", meaning: "number of inducing points", above: 0.0, most: 20_000.0 },
            engine: Engine::Streaming(|settings, _, size| {
                settings.selection = Arc::new(Fixed { size: size.unwrap_or(100.0).ceil() as usize })
            }),
        },
        Method {
            name: "power_ep",
            summary: "chooses as vips, and approximates by power expectation propagation",
            parameter: Parameter {
                symbol: "alpha",
                meaning: "0 is nearly variational inference, 1 is expectation propagation",
                above: 0.0,
                most: 1.0,
            },
            engine: Engine::Streaming(|settings, _, alpha| {
                settings.inference = Inference::power_ep(alpha.unwrap_or(0.5)).unwrap_or_default()
            }),
        },
        Method {
            name: "dual_memory",
            summary: "a fixed number of inducing points that move, and a memory of readings of each batch",
            parameter: Parameter {
                symbol: "memory",
                meaning: "readings of each batch that are remembered",
                above: -1.0,
                most: 1e6,
            },
            engine: Engine::DualMemory,
        },
    ]
}

/// A method and the value of its parameter, written `NAME` or `NAME=PARAMETER`. There is always such a method, and it allows the
/// value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Named {
    name: String,
    parameter: Option<f64>,
}

impl Default for Named {
    fn default() -> Self {
        Self { name: "vips".to_owned(), parameter: None }
    }
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameter) = name_and_parameter(text)?;
        // Names and parameters are the same for every kernel.
        let methods = methods::<Stationary>();
        let Some(method) = methods.iter().find(|method| method.name == name) else {
            return Err(format!(
                "expected one of {}",
                methods.iter().map(|method| method.name).collect::<Vec<_>>().join(", ")
            ));
        };
        method.parameter.check(name, parameter)?;
        Ok(Self { name: name.to_owned(), parameter })
    }
}

/// What is on both sides of the first `=`.
///
/// # Errors
/// What was expected, when something else than a number is behind it.
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
            None => write!(f, "{}", self.name),
            Some(parameter) => write!(f, "{}={parameter}", self.name),
        }
    }
}

impl Named {
    /// The settings of the method, made from those of VIPS; those of VIPS where it is not one of the streaming model.
    pub fn configure<K: Kernel>(&self, settings: &mut Settings<K>, vips: &Vips) {
        if let Some(Engine::Streaming(set)) = self.engine() {
            set(settings, vips, self.parameter);
        }
    }

    /// Whether it is the dual model.
    pub fn is_dual_memory(&self) -> bool {
        matches!(self.engine::<Stationary>(), Some(Engine::DualMemory))
    }

    /// Its parameter, where it is not the default.
    pub fn parameter(&self) -> Option<f64> {
        self.parameter
    }

    fn engine<K: Kernel>(&self) -> Option<Engine<K>> {
        methods().into_iter().find(|method| method.name == self.name).map(|method| method.engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_named_with_or_without_their_parameter() {
        for text in ["vips", "oips=0.9", "conditional_variance=0.005", "fixed=50", "power_ep=1", "dual_memory=0"] {
            assert_eq!(text.parse::<Named>().unwrap().to_string(), text);
        }
        let refused = |text: &str| text.parse::<Named>().unwrap_err();
        assert_eq!(refused("vip"), "expected one of vips, conditional_variance, oips, fixed, power_ep, dual_memory");
        assert_eq!(refused("oips=much"), "expected a number after oips=");
        assert_eq!(refused("oips=inf"), "expected a number after oips=");
        assert_eq!(refused("oips=1.1"), "expected rho of oips to be more than 0 and at most 1");
        assert_eq!(refused("conditional_variance=-1"), "expected eta of conditional_variance to be more than 0");
    }
}
