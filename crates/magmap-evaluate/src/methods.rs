//! Every method that the experiments can run: those that make maps, and the references they are compared with.

mod dual_memory;
mod learner;
mod map;
mod mean;
mod refit;

use magmap::config::{Config, Selection};
use std::fmt;
use std::str::FromStr;
use streaming_gp::methods::{self, Parameter, name_and_parameter};

pub use dual_memory::DualMemory;
pub use learner::{Learner, Learnt};
pub use refit::MOST_EXACT;

/// A method with its parameter, written `NAME` or `NAME=PARAMETER`.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// A method that makes maps.
    Map(methods::Named),
    /// The memory-based dual model.
    DualMemory(DualMemory),
    /// The Gaussian process on all readings so far.
    Exact,
    /// A sparse Gaussian process on all readings so far, with at most this number of inducing points.
    BatchSparse(Option<f64>),
    /// Mean and variance of all readings so far.
    Mean,
}

/// Name, summary and parameters of a method.
pub type Description = (&'static str, &'static str, Vec<Parameter>);

/// All methods.
pub fn methods() -> Vec<Description> {
    let of_maps = methods::Method::ALL.iter();
    let of_maps = of_maps.map(|method| (method.name(), method.summary(), vec![method.parameter()]));
    let moving = "a fixed number of inducing points that move, and a memory of readings of each batch";
    let references = [
        (dual_memory::NAME, moving, dual_memory::PARAMETERS.to_vec()),
        ("exact", "the Gaussian process itself on all readings so far, for few of them", Vec::new()),
        ("batch_sparse", "a sparse Gaussian process on all readings so far at once", vec![refit::PARAMETER]),
        ("mean", "mean and variance of the readings so far", Vec::new()),
    ];
    of_maps.chain(references).collect()
}

impl Method {
    /// The method that the settings name.
    pub fn configured(config: &Config) -> Self {
        Self::Map(config.selection.method.clone())
    }

    /// Name of the method, without the parameter.
    pub fn name(&self) -> String {
        self.to_string().split('=').take(1).collect()
    }

    /// A learner over places of `dimension` coordinates.
    pub fn learner(&self, config: &Config, dimension: usize) -> Box<dyn Learner> {
        match self {
            Self::Map(method) => {
                let selection = Selection { method: method.clone(), ..config.selection.clone() };
                Box::new(map::learner(&Config { selection, ..config.clone() }, dimension))
            }
            Self::DualMemory(settings) => Box::new(settings.learner(config, dimension)),
            Self::Exact => Box::new(refit::exact(config, dimension)),
            Self::BatchSparse(inducing_points) => Box::new(refit::batch_sparse(config, dimension, *inducing_points)),
            Self::Mean => Box::new(mean::Mean::default()),
        }
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.split(['=', ',']).next().map(str::trim) == Some(dual_memory::NAME) {
            return text.parse().map(Self::DualMemory);
        }
        match name_and_parameter(text)? {
            ("exact", None) => Ok(Self::Exact),
            ("mean", None) => Ok(Self::Mean),
            (name @ ("exact" | "mean"), Some(_)) => Err(format!("expected {name} without a parameter")),
            ("batch_sparse", parameter) => {
                refit::PARAMETER.check("batch_sparse", parameter).map(|()| Self::BatchSparse(parameter))
            }
            (name, _) => {
                let names: Vec<&str> = methods().iter().map(|(name, ..)| *name).collect();
                match names.contains(&name) {
                    true => text.parse().map(Self::Map),
                    false => Err(format!("expected one of {}", names.join(", "))),
                }
            }
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(method) => method.fmt(f),
            Self::DualMemory(settings) => settings.fmt(f),
            Self::Exact => f.write_str("exact"),
            Self::BatchSparse(None) => f.write_str("batch_sparse"),
            Self::BatchSparse(Some(inducing_points)) => write!(f, "batch_sparse={inducing_points}"),
            Self::Mean => f.write_str("mean"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Readings;
    use std::ops::Range;
    use streaming_gp::kernel::Places;

    /// A wave along a line, with a little noise that is not random.
    fn readings(rows: Range<usize>) -> Readings {
        let wave = |i: usize| 50.0 + 10.0 * (0.12 * i as f64).sin() + 0.3 * ((i * i) as f64).cos();
        rows.map(|i| ([0.1 * i as f64], wave(i))).collect()
    }

    #[test]
    fn every_method_learns_and_all_but_the_mean_know_the_wave() {
        let config = Config::default();
        for (name, ..) in methods() {
            let mut learner = name.parse::<Method>().unwrap().learner(&config, 1);
            for batch in 0..3 {
                let learnt = learner.learn(&readings(40 * batch..40 * (batch + 1)));
                let learnt = learnt.unwrap_or_else(|error| panic!("{name}: {error}"));
                let size = learner.posterior().map_or(0, |posterior| posterior.past.inducing.len());
                assert_eq!(size, learnt.inducing_points, "{name}");
            }
            let test = readings(0..120);
            let scores = learner.predict(&test.places).score(&test.targets, |_| true);
            println!("{name}: {scores:?}");
            match name {
                // The deviation of a sine of amplitude 10 over two waves.
                "mean" => assert!((6.0..8.0).contains(&scores.rmse), "{scores:?}"),
                name => assert!(scores.rmse < 1.0 && scores.coverage > 0.9, "{name}: {scores:?}"),
            }
        }
    }

    #[test]
    fn an_unknown_method_is_rejected_with_what_was_expected() {
        let rejected = |text: &str| text.parse::<Method>().unwrap_err();
        assert!(
            rejected("gp")
                .starts_with("expected one of vips, conditional_variance, oips, fixed, power_ep, dual_memory, exact")
        );
        assert_eq!(rejected("mean=3"), "expected mean without a parameter");
        assert_eq!(rejected("power_ep=1.5"), "expected alpha of power_ep to be more than 0 and at most 1");
        for text in ["vips", "oips=0.9", "exact", "batch_sparse=300", "dual_memory=20,points=50"] {
            assert_eq!(text.parse::<Method>().unwrap().to_string(), text);
        }
    }
}
