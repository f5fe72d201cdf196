//! Every method, as the experiments run it: those that make maps, and the references that they are judged by.
//!
//! A further method is a file with its [`Learner`] and one entry of [`methods()`].

mod dual_memory;
mod mean;
mod refit;
mod streaming;

use super::metrics::Predictions;
use magmap::config::Config;
use magmap::mapping::field_model::FieldPosterior;
use std::fmt;
use std::str::FromStr;
use streaming_gp::kernel::Stationary;
use streaming_gp::methods::{self, Engine, Parameter, name_and_parameter};
use streaming_gp::points::Points;
use streaming_gp::report::{NamedValue, SelectionEnd, UpdateReport};

pub use refit::MOST_EXACT;

/// Learns from batches, one after another, and predicts.
pub trait Learner {
    /// Takes in a batch of readings.
    ///
    /// # Errors
    /// When it is refused.
    fn learn(&mut self, places: &Points, targets: &[f64]) -> Result<Learnt, Refused>;

    /// The posterior of the latent function; none before the first batch, or where it has no such thing.
    fn posterior(&self) -> Option<&FieldPosterior>;

    /// What would be measured at the places, noise included.
    ///
    /// # Panics
    /// Before the first batch.
    fn predict(&self, places: &Points) -> Predictions {
        Predictions::at(self.posterior().expect("there was a batch"), places)
    }
}

/// What a batch left a learner with.
#[derive(Clone, Debug)]
pub struct Learnt {
    /// Inducing points.
    pub inducing_points: usize,
    /// Hyperparameters; the noise variance is the last.
    pub hyperparameters: Vec<NamedValue>,
    /// Evaluations of bound and gradient.
    pub evaluations: usize,
    /// Why no further inducing point was added; none where there is no such choice.
    pub end: Option<SelectionEnd>,
}

impl From<UpdateReport> for Learnt {
    fn from(report: UpdateReport) -> Self {
        Self {
            inducing_points: report.inducing_points,
            hyperparameters: report.hyperparameters,
            evaluations: report.learning.evaluations,
            end: Some(report.selection.end),
        }
    }
}

/// Why a learner refused a batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The model did.
    #[error(transparent)]
    Model(#[from] streaming_gp::streaming::Error),
    /// It would need a matrix that is too large.
    #[error(
        "expected at most {most} readings in all for the exact Gaussian process, found {found}: batch_sparse takes more"
    )]
    TooMany {
        /// Readings so far.
        found: usize,
        /// Most readings.
        most: usize,
    },
}

/// A method of the experiments.
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Its parameter, if it has one.
    pub parameter: Option<Parameter>,
    /// Makes a learner over so many coordinates, with the parameter or its default.
    learner: fn(&Config, dimension: usize, &Named) -> Box<dyn Learner>,
}

/// All methods.
pub fn methods() -> Vec<Method> {
    // What the map's model can be told to do has the same names and parameters whatever its kernel.
    let of_maps = methods::methods::<Stationary>().into_iter().map(|method| Method {
        name: method.name,
        summary: method.summary,
        parameter: Some(method.parameter),
        learner: match method.engine {
            Engine::Streaming(_) => streaming::learner,
            Engine::DualMemory => dual_memory::learner,
        },
    });
    let references = [
        Method {
            name: "exact",
            summary: "the Gaussian process itself on all readings so far, for few of them",
            parameter: None,
            learner: refit::exact,
        },
        Method {
            name: "batch_sparse",
            summary: "a sparse Gaussian process on all readings so far at once",
            parameter: Some(refit::PARAMETER),
            learner: refit::batch_sparse,
        },
        Method {
            name: "mean",
            summary: "mean and variance of the readings so far",
            parameter: None,
            learner: mean::learner,
        },
    ];
    of_maps.chain(references).collect()
}

/// A method and its parameter, written `NAME` or `NAME=PARAMETER`. There is always such a method, and it allows the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    name: &'static str,
    parameter: Option<f64>,
}

impl Named {
    /// The name of the method, without its parameter.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A learner over so many coordinates.
    pub fn learner(&self, config: &Config, dimension: usize) -> Box<dyn Learner> {
        let method = methods().into_iter().find(|method| method.name == self.name);
        (method.expect("a name is that of a method").learner)(config, dimension, self)
    }

    /// Its parameter, where it is not the default.
    pub fn parameter(&self) -> Option<f64> {
        self.parameter
    }
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameter) = name_and_parameter(text)?;
        let methods = methods();
        let Some(method) = methods.iter().find(|method| method.name == name) else {
            let names: Vec<&str> = methods.iter().map(|method| method.name).collect();
            return Err(format!("expected one of {}", names.join(", ")));
        };
        match (&method.parameter, parameter) {
            (Some(known), _) => known.check(name, parameter)?,
            (None, Some(_)) => return Err(format!("expected {name} without a parameter")),
            (None, None) => {}
        }
        Ok(Self { name: method.name, parameter })
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parameter {
            None => f.write_str(self.name),
            Some(parameter) => write!(f, "{}={parameter}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use streaming_gp::kernel::Places;

    /// A wave along a line, with a little noise that is not random.
    fn readings(from: usize, to: usize) -> (Points, Vec<f64>) {
        let mut places = Points::new(1);
        (from..to).for_each(|i| places.push(&[0.1 * i as f64]));
        let wave = |i: usize| 50.0 + 10.0 * (0.12 * i as f64).sin() + 0.3 * ((i * i) as f64).cos();
        (places, (from..to).map(wave).collect())
    }

    #[test]
    fn every_method_learns_and_all_but_the_mean_know_the_wave() {
        let config = Config::default();
        for method in methods() {
            let named: Named = method.name.parse().unwrap();
            let mut learner = named.learner(&config, 1);
            for batch in 0..3 {
                let (places, targets) = readings(40 * batch, 40 * (batch + 1));
                let learnt = learner.learn(&places, &targets).unwrap_or_else(|error| panic!("{named}: {error}"));
                let size = learner.posterior().map_or(0, |posterior| posterior.inducing().len());
                assert_eq!(size, learnt.inducing_points, "{named}");
            }
            let (places, targets) = readings(0, 120);
            let scores = learner.predict(&places).score(&targets, |_| true);
            println!("{named}: {scores:?}");
            match method.name {
                // The deviation of a sine of amplitude 10 over two waves.
                "mean" => assert!((6.0..8.0).contains(&scores.rmse), "{scores:?}"),
                name => assert!(scores.rmse < 1.0 && scores.coverage > 0.9, "{name}: {scores:?}"),
            }
        }
    }

    #[test]
    fn what_is_no_method_is_refused_with_what_was_expected() {
        let refused = |text: &str| text.parse::<Named>().unwrap_err();
        assert!(
            refused("gp")
                .starts_with("expected one of vips, conditional_variance, oips, fixed, power_ep, dual_memory, exact")
        );
        assert_eq!(refused("mean=3"), "expected mean without a parameter");
        assert_eq!(refused("power_ep=1.5"), "expected alpha of power_ep to be more than 0 and at most 1");
        for text in ["vips", "oips=0.9", "exact", "batch_sparse=300", "dual_memory=20"] {
            assert_eq!(text.parse::<Named>().unwrap().to_string(), text);
        }
    }
}
