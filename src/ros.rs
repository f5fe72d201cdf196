//! The ROS 2 nodes: they convert, forward and publish; everything else is in the inner rooms. This is the mapper; `localizer` locates
//! the robot in a finished map.
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
mod listener;
mod localizer;
mod logging;
mod names;
mod node;
mod parameters;
mod publishing;
mod services;
mod shared;
mod threads;

use std::io::Write;
use std::process::ExitCode;
use std::thread::JoinHandle;

pub use localizer::run as run_localizer;
pub use node::run;

/// What the program of a node does: prints the help, or runs the node and reports how it ended.
pub fn main(help: &str, run: fn() -> Result<(), Error>) -> ExitCode {
    if std::env::args_os().skip(1).any(|argument| argument == "--help" || argument == "-h") {
        // A reader such as `head` may close it early.
        let _ = writeln!(std::io::stdout(), "{help}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Before there is a node there is no log.
            if log::max_level() == log::LevelFilter::Off {
                eprintln!("magmap: {error}")
            } else {
                log::error!("{error}")
            }
            match error {
                Error::Arguments { .. } | Error::Config(_) | Error::ParameterType { .. } => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|source| Error::System(format!("the {name} thread could not be started"), source))
}

/// A node whose log is that of this process.
fn create_node(name: &str) -> Result<r2r::Node, Error> {
    let context = arguments::context()?;
    let node = r2r::Node::create(context, name, "").context(|| format!("node {name} cannot be created"))?;
    logging::install(node.logger());
    Ok(node)
}

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
    /// The map to be located in cannot be read.
    #[error(transparent)]
    Map(#[from] crate::durability::Error),
    /// Nobody can be located in the map.
    #[error(transparent)]
    Localization(#[from] crate::localization::Error),
    /// The map cannot be drawn.
    #[error(transparent)]
    Field(#[from] crate::field::Error),
    /// A thread panicked: which one.
    #[error("the {0} thread panicked")]
    Panicked(&'static str),
    /// The operating system failed to start a thread or to handle signals: what failed, and its error.
    #[error("{0}: {1}")]
    System(String, #[source] std::io::Error),
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
