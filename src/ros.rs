//! The ROS 2 node: converts, forwards and publishes; everything else is in modules that do not need ROS.
//!
//! ```text
//! subscriptions ── intake ── inbox ── mapping thread ── snapshots ── publishing thread ── maps
//! parameters      (frames)              │   ▲
//! diagnostics, health                   ▼   │
//! ───────── ROS thread ─────────     service thread ── responses
//! ```
//!
//! The ROS thread spins the node and never waits for the map. Only the mapping thread owns the model; the service thread sends it
//! requests that take time, the publishing thread rasterizes its snapshots for subscribers.

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
mod shared;
mod threads;

pub use node::run;

/// Why the node could not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of ROS failed: what was tried, and its error.
    #[error("{0}: {1}")]
    Ros(String, #[source] r2r::Error),
    /// ROS does not start, with its reason.
    #[error("ROS cannot be initialised: {0}")]
    Start(String),
    /// The command line for ROS is wrong, with the reason.
    #[error("wrong arguments: {0}")]
    Arguments(String),
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
    /// The session could not start, or did not end in good order.
    #[error(transparent)]
    Session(#[from] crate::session::Error),
    /// The mapping thread failed.
    #[error(transparent)]
    Mapping(#[from] crate::mapping::Error),
    /// The operating system failed to start a thread or to handle signals: what failed, and its error.
    #[error("{0}: {1}")]
    System(&'static str, #[source] std::io::Error),
}

/// Adds what was tried to errors of ROS.
trait Context<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Context<T> for Result<T, r2r::Error> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Ros(what(), source))
    }
}
