//! The options for errors of odometry.

use clap::Args;
use magmap::simulation::Drift;

/// Errors of odometry, as those of wheels that slip.
#[derive(Args)]
pub struct DriftArguments {
    /// Relative error of the distances that odometry reports (negative: too short).
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    drift_scale: f64,
    /// Steady error of odometry's heading, in radians per metre (positive: the robot seems to turn left).
    #[arg(long, value_name = "RADIANS", default_value_t = 0.0)]
    drift_turn: f64,
    /// Noise of odometry's heading: its standard deviation after one metre, in radians.
    #[arg(long, value_name = "RADIANS", default_value_t = 0.0)]
    drift_heading: f64,
    /// Noise of odometry's distance: its standard deviation after one metre, in metres.
    #[arg(long, value_name = "METRES", default_value_t = 0.0)]
    drift_slip: f64,
}

impl DriftArguments {
    /// The errors; none if all are zero.
    pub fn drift(&self) -> Option<Drift> {
        let Self { drift_scale: scale, drift_turn: turn, drift_heading: heading, drift_slip: slip } = *self;
        Some(Drift { scale, turn, heading, slip }).filter(|drift| *drift != Drift::default())
    }
}
