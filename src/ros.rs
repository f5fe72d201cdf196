//! The ROS 2 node: converts, forwards and publishes; everything else is in the rooms further in.
//!
//! ```text
//! subscriptions ── intake ── inbox ── mapping thread ── snapshots ── publishing thread ── maps
//! parameters      (frames)              │   ▲
//! diagnostics, complaints               ▼   │
//! ───────── ROS thread ─────────     service thread ── answers
//! ```
//!
//! The ROS thread spins the node and never waits for the map. Only the mapping thread owns the model; the service thread asks it
//! for what takes time, the publishing thread rasterizes its snapshots for those who watch.

mod arguments;
mod clock;
mod conversions;
mod diagnostics;
mod graph;
mod interfaces;
mod logging;
mod names;
mod node;
mod parameters;
mod publishing;
mod services;
mod threads;

pub use node::run;

/// Why the node could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// ROS refused something.
    #[error("{what}: {source}")]
    Ros {
        /// What was tried.
        what: String,
        /// What it says.
        source: r2r::Error,
    },
    /// ROS does not start.
    #[error("ROS cannot be initialised: {reason}")]
    Start {
        /// What it says.
        reason: String,
    },
    /// What is on the command line for ROS is wrong.
    #[error("wrong arguments: {reason}")]
    Arguments {
        /// What is wrong.
        reason: String,
    },
    /// A parameter, or the configuration file that one names, is wrong.
    #[error(transparent)]
    Config(#[from] crate::config::Error),
    /// A parameter has a type that no setting has.
    #[error("parameter {name}: expected a boolean, a number, text or a list of numbers, found {found}")]
    ParameterType {
        /// Its name.
        name: String,
        /// The type found.
        found: &'static str,
    },
    /// The run could not begin, or did not end in good order.
    #[error(transparent)]
    Session(#[from] crate::mapping::session::Error),
    /// The mapping thread failed.
    #[error(transparent)]
    Mapping(#[from] crate::mapping::Error),
    /// The operating system gave no thread, or no signals.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// Says what was tried when ROS refuses it.
trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Context<T> for Result<T, r2r::Error> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Ros { what: what(), source })
    }
}
