//! The ROS 2 nodes: they convert, forward and publish; everything else is in the inner rooms. The diagram shows the mapper; `localizer` locates
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
//! requests that take time, the publishing thread rasterizes its snapshots for subscribers. Where the field corrects the path, the ROS
//! thread publishes the robot's pose and the transform from odometry with every message of odometry; where another SLAM does, it passes on the
//! path of that.

mod arguments;
mod clock;
mod conversions;
mod diagnostics;
mod interfaces;
mod listener;
mod localizer;
mod logging;
mod names;
mod node;
mod parameters;
#[cfg(any(feature = "slam_toolbox", test))]
mod pose_graph;
mod publishers;
mod publishing;
mod robot_pose;
mod services;
mod shared;
mod slam_path;
mod threads;

use std::io::Write;
use std::process::ExitCode;
use std::thread::JoinHandle;

use anyhow::Context;

use crate::errors::in_words;

pub use localizer::run as run_localizer;
pub use node::run;

/// The main function of a node: prints the help, or runs the node and reports how it ended.
pub fn main(help: &str, run: fn() -> anyhow::Result<()>) -> ExitCode {
    if std::env::args_os().skip(1).any(|argument| argument == "--help" || argument == "-h") {
        // A reader such as `head` may close it early.
        let _ = writeln!(std::io::stdout(), "{help}");
        return ExitCode::SUCCESS;
    }
    let Err(error) = run() else { return ExitCode::SUCCESS };
    let words = in_words(&error);
    // Before there is a node there is no log.
    if log::max_level() == log::LevelFilter::Off {
        eprintln!("magmap: {words}")
    } else {
        log::error!("{words}")
    }
    let is_usage = error.is::<UsageError>() || error.is::<crate::config::Error>();
    if is_usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// The command line for ROS or a parameter is wrong; so may be the configuration, whose errors are its own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.with_context(|| format!("the {name} thread could not be started"))
}

/// A node whose log is that of this process.
fn create_node(name: &str) -> anyhow::Result<r2r::Node> {
    let context = arguments::context()?;
    let node = r2r::Node::create(context, name, "").with_context(|| format!("node {name} cannot be created"))?;
    logging::install(node.logger());
    Ok(node)
}
