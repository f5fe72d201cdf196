//! Path and map together: the field corrects odometry.
//!
//! Odometry drifts; the field at a place that is visited again does not. The [`Smoother`] estimates the pose of every observation and the
//! field together: the path that explains the readings of three axes best, given what odometry says and how rough the field is.
//!
//! ```text
//! observations ── chain ── segments (within a tile: poses eliminated) ── tiles (field eliminated) ── border: where tiles are entered
//! ```
//!
//! The plane is divided into tiles with a field each; the path is divided where it enters another tile. New poses are estimated in a window
//! against the map so far, and the whole path when it has become longer by a tenth: the cost is linear in the length of the path, but for the
//! system of the border, which is dense. Beside it a particle filter of whole paths finds where the path is after a long way
//! round, from which the smoother starts again.

mod basis;
mod chain;
mod estimate;
mod path_filter;
mod prior;
mod segment;
mod smoother;
mod tile;
mod tridiagonal;

pub use basis::FieldPrior;
pub use chain::{
    DELAY, DRIFT, IRON, Link, MEAN, OdometryNoise, PlanePose, SCALE, SHARED, Shared, chain, moved, plane_pose, wrapped,
};
pub use estimate::{Error, Estimate, LocalHyperparameters, PathEstimator, Tracked, estimate, local_hyperparameters};
pub use prior::Prior;
pub use smoother::{Revisit, Smoother};
