//! Every setting of magmap, its default and its meaning: one struct for the command line, the library and the node.
//!
//! Settings come from TOML, where whatever is left out has its default (`config/default.toml` spells them all out). Unknown keys,
//! wrong types and impossible values are refused, all at once, each with its key and line and what was expected there.

mod checks;
mod error;
mod keys;
mod parsing;

use nalgebra::{Isometry3, Translation3, UnitQuaternion};
use serde::{Deserialize, Serialize};
use streaming_gp::kernel::Shape;
use streaming_gp::methods::Named;

pub use error::{Error, Problem};
pub use keys::Setting;

/// All settings. `Config::default()` is what `config/default.toml` spells out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Which topics of a recording to read.
    pub topics: Topics,
    /// How the magnetometer sits on the robot, and its calibration.
    pub sensor: Sensor,
    /// In which frame the map is, and where poses come from.
    pub frames: Frames,
    /// What is refused as implausible.
    pub gates: Gates,
    /// How readings find their poses.
    pub synchronizer: Synchronizer,
    /// How readings are averaged along the path.
    pub averaging: Averaging,
    /// When a batch is full.
    pub batch: Batch,
    /// The Gaussian process and where its hyperparameters start.
    pub model: Model,
    /// A yes/no signal, where the likelihood is `bernoulli`.
    pub bernoulli: Bernoulli,
    /// How many inducing points, and where.
    pub selection: Selection,
    /// The dual model, where the method is `dual_memory`.
    pub dual_memory: DualMemory,
    /// How hyperparameters are learnt.
    pub learning: Learning,
    /// The published grid.
    pub raster: Raster,
    /// The mapping thread.
    pub worker: Worker,
    /// What is kept against crashes.
    pub journal: Journal,
    /// The ROS 2 node.
    pub node: Node,
    /// The experiments of `magmap-evaluate`.
    pub evaluation: Evaluation,
}

/// Which topics to read. Empty means: of a recording, those found by their type; in the node, `imu/mag` and `odom`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topics {
    /// Topic of type `sensor_msgs/msg/MagneticField`.
    pub magnetometer: String,
    /// Topic of type `nav_msgs/msg/Odometry`.
    pub odometry: String,
    /// Topic of type `std_msgs/msg/Bool`, which is mapped in place of the magnetometer's where `model.likelihood` is `bernoulli`. It has to
    /// be named there, and only there.
    pub signal: String,
}

/// How the magnetometer sits on the robot, where transforms do not say, and its calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sensor {
    /// Whether `position` and `orientation` replace the transforms of the recording or the robot.
    pub override_transforms: bool,
    /// Position of the sensor in the robot's body frame, in metres.
    pub position: [f64; 3],
    /// Orientation of the sensor in the robot's body frame: roll, pitch, yaw in radians.
    pub orientation: [f64; 3],
    /// Hard iron: what the robot itself adds to every reading, along the sensor's axes, in microtesla. It is subtracted.
    pub hard_iron: [f64; 3],
    /// Soft iron: the 3 x 3 matrix, row by row, that multiplies a reading when the hard iron is gone.
    pub soft_iron: [f64; 9],
}

impl Default for Sensor {
    fn default() -> Self {
        Self {
            override_transforms: false,
            position: [0.0; 3],
            orientation: [0.0; 3],
            hard_iron: [0.0; 3],
            soft_iron: [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        }
    }
}

impl Sensor {
    /// The transform from the sensor's frame to the robot's body frame.
    pub fn mount(&self) -> Isometry3<f64> {
        let [roll, pitch, yaw] = self.orientation;
        Isometry3::from_parts(Translation3::from(self.position), UnitQuaternion::from_euler_angles(roll, pitch, yaw))
    }
}

/// In which frame the map is, and where poses come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Frames {
    /// The frame of the map; empty means that of the odometry.
    pub map: String,
    /// Where the node's poses come from.
    pub pose_source: PoseSource,
    /// How long a measurement waits for a transform before it is refused, in seconds between stamps.
    pub patience: f64,
    /// A transform from the odometry's frame to the map's that moves by more than this between two stamps has jumped, in metres.
    pub jump_distance: f64,
    /// The same for its rotation, in radians.
    pub jump_angle: f64,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            map: String::new(),
            pose_source: PoseSource::Odometry,
            patience: 10.0,
            jump_distance: 0.1,
            jump_angle: 0.05,
        }
    }
}

/// Where the node's poses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoseSource {
    /// From odometry messages, moved into the map's frame.
    Odometry,
    /// From transforms: where the sensor is in the map's frame at each reading's stamp.
    Transforms,
}

/// What is refused as implausible. Every refusal is counted under its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gates {
    /// Weakest plausible field strength, in microtesla.
    pub minimum_field: f64,
    /// Strongest plausible field strength, in microtesla.
    pub maximum_field: f64,
    /// Fastest plausible speed between two poses, in metres per second; 0 switches the gate off.
    pub max_speed: f64,
    /// Steepest plausible change of the field between two readings, in microtesla per metre; 0 switches the gate off.
    pub max_gradient: f64,
    /// Change of the field between two readings that is always plausible, however close they are, in microtesla.
    pub gradient_allowance: f64,
    /// A gate that has refused so many in a row, for `reopen_time`, was wrong about the first: it reopens and says so. So does one
    /// that refused so many stamps more than a second behind, however soon: the clock went back.
    pub reopen_after: u32,
    /// How long a gate of places or fields refuses in a row before it reopens, in seconds.
    pub reopen_time: f64,
    /// Full scale of the sensor's axes as it sends them, in microtesla: a reading with an axis there or beyond is saturated; 0
    /// where it is not known.
    pub full_scale: f64,
    /// How far the sensor may go while one of its axes stays the same to the last bit, in metres; 0 switches the gate off.
    pub max_repeat: f64,
    /// Most readings that may share a stamp; beyond, their clock has stopped. 0 switches the gate off.
    pub max_same_stamp: u32,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            minimum_field: 1.0,
            maximum_field: 1000.0,
            max_speed: 3.0,
            max_gradient: 1000.0,
            gradient_allowance: 40.0,
            reopen_after: 5,
            reopen_time: 0.5,
            full_scale: 0.0,
            max_repeat: 0.25,
            max_same_stamp: 20,
        }
    }
}

/// How readings find their poses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Synchronizer {
    /// Longest time between two poses across which a reading's pose is interpolated, in seconds.
    pub max_gap: f64,
    /// How many readings may wait for their pose before the oldest is refused; as many poses are kept for late readings.
    pub max_waiting: usize,
}

impl Default for Synchronizer {
    fn default() -> Self {
        Self { max_gap: 0.5, max_waiting: 10_000 }
    }
}

/// How readings are averaged along the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Averaging {
    /// Length of path whose readings become one observation, in metres; 0 keeps every reading.
    pub spacing: f64,
}

impl Default for Averaging {
    fn default() -> Self {
        Self { spacing: 0.05 }
    }
}

/// When a batch is full: at whichever limit is reached first; 0 switches a limit off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Batch {
    /// Most observations in a batch.
    pub max_observations: usize,
    /// Longest path in a batch, in metres.
    pub max_path: f64,
    /// Longest time in a batch, in seconds.
    pub max_duration: f64,
}

impl Default for Batch {
    fn default() -> Self {
        Self { max_observations: 200, max_path: 5.0, max_duration: 10.0 }
    }
}

/// The Gaussian process and where its hyperparameters start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Shape of the covariance function.
    pub kernel: Shape,
    /// One lengthscale for both axes, or one per axis.
    pub lengthscale_per_axis: bool,
    /// Whether a constant is added to the covariance, for the ambient field.
    pub constant: bool,
    /// The prior mean of the field, in microtesla; fixed for a map's life.
    pub mean: f64,
    /// Added to the diagonal of the inducing points' covariance, relative to the prior variance.
    pub relative_jitter: f64,
    /// How the noise is distributed.
    pub likelihood: Likelihood,
    /// Degrees of freedom of the noise where it is Student's t: the fewer, the heavier its tails. Above 2.
    pub degrees_of_freedom: f64,
    /// Where learning starts.
    pub initial: Hyperparameters,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            kernel: Shape::Matern52,
            lengthscale_per_axis: false,
            constant: true,
            mean: 0.0,
            relative_jitter: 1e-6,
            likelihood: Likelihood::Gaussian,
            degrees_of_freedom: 4.0,
            initial: Hyperparameters { constant: 500.0, variance: 150.0, lengthscale: 0.7, noise: 2.0 },
        }
    }
}

/// How the noise is distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Likelihood {
    /// Normally: every reading counts alike.
    Gaussian,
    /// As Student's t, with heavy tails: gross outliers count for little, in the averages along the path and in the model.
    StudentT,
    /// There is none: a yes/no signal is mapped, by the method `dual_memory`.
    Bernoulli,
}

/// A yes/no signal, where `model.likelihood` is `bernoulli`: the latent function whose cumulative normal is the probability of a yes.
/// In place of `model.initial` and of the prior's medians and deviations, which are those of a field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bernoulli {
    /// Variance of the constant: where learning starts, and the prior's median.
    pub constant: f64,
    /// Variance of what varies around it: the same.
    pub variance: f64,
    /// Lengthscale, in metres: the same.
    pub lengthscale: f64,
    /// Standard deviation of the logarithm of each under the prior.
    pub prior_log_sd: f64,
}

impl Default for Bernoulli {
    fn default() -> Self {
        Self { constant: 1.0, variance: 4.0, lengthscale: 0.7, prior_log_sd: 0.7 }
    }
}

/// One number for each kind of hyperparameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hyperparameters {
    /// Variance of the constant, in microtesla squared.
    pub constant: f64,
    /// Variance of the field around it, in microtesla squared.
    pub variance: f64,
    /// Lengthscale, in metres.
    pub lengthscale: f64,
    /// Variance of the noise, in microtesla squared; of Student's t the square of its scale.
    pub noise: f64,
}

/// How many inducing points, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// By which method, `NAME` or `NAME=PARAMETER`.
    pub method: Named,
    /// Of `vips`: share of the information in a batch that may be lost for want of inducing points: smaller is larger maps, more exact.
    pub delta: f64,
    /// Keep the threshold from vanishing where there is nothing to model.
    pub guards: bool,
    /// What the evidence lower bound is compared with.
    pub ceiling: Ceiling,
    /// Most rows (readings of the batch) for which the exact ceiling is computed; beyond it the upper bound rules.
    pub exact_limit: usize,
    /// Most inducing points the map may have; reported when it binds.
    pub max_inducing_points: usize,
    /// An inducing point whose variance given the others, relative to the prior variance, is below this is dropped.
    pub redundancy: f64,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            method: Named::default(),
            delta: 0.32,
            guards: true,
            ceiling: Ceiling::Auto,
            exact_limit: 10_000,
            max_inducing_points: 3000,
            redundancy: 1e-6,
        }
    }
}

/// What the evidence lower bound is compared with when inducing points are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ceiling {
    /// The bound with every reading an inducing point, where the batch is small enough; the upper bound otherwise.
    Auto,
    /// The upper bound, always.
    Upper,
}

/// The memory-based dual model, where `selection.method` is `dual_memory`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DualMemory {
    /// Most inducing points; they move with every batch.
    pub inducing_points: usize,
    /// Observations of each batch that are remembered, unless the method says how many.
    pub memory_per_batch: usize,
    /// Most observations in memory; beyond, some of the old and the new stay.
    pub max_memory: usize,
    /// How much of the evidence that the memory stands for counts when hyperparameters are learnt: 1 is all of it. Less allows for
    /// errors that neighbours share.
    pub memory_evidence: f64,
    /// Most natural-gradient steps in a row; fewer where they change nothing any more.
    pub max_steps: usize,
    /// Length of a step: 1 goes all the way, less is slower and steadier.
    pub step_length: f64,
}

impl Default for DualMemory {
    fn default() -> Self {
        Self {
            inducing_points: 250,
            memory_per_batch: 100,
            max_memory: 2000,
            memory_evidence: 0.1,
            max_steps: 10,
            step_length: 0.9,
        }
    }
}

/// How hyperparameters are learnt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Learning {
    /// Evaluations of bound and gradient allowed per batch; 0 keeps the hyperparameters as they are.
    pub max_evaluations: usize,
    /// A batch of fewer observations leaves the hyperparameters as they are: the prior would outweigh it.
    pub min_observations: usize,
    /// How many of the observations before a batch count for the variance of the noise; 0: it is learnt from each batch alone.
    pub noise_memory: u32,
    /// Whether the log-normal prior takes part.
    pub prior: bool,
    /// Medians of the prior.
    pub prior_median: Hyperparameters,
    /// Standard deviations of the logarithms under the prior.
    pub prior_log_sd: Hyperparameters,
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            max_evaluations: 60,
            min_observations: 20,
            noise_memory: 1000,
            prior: true,
            prior_median: Hyperparameters { constant: 500.0, variance: 150.0, lengthscale: 0.7, noise: 2.0 },
            prior_log_sd: Hyperparameters { constant: 0.5, variance: 0.4, lengthscale: 0.2, noise: 0.5 },
        }
    }
}

/// The published grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Raster {
    /// Side of a cell, in metres.
    pub resolution: f64,
    /// How far the grid reaches beyond the path and the outermost inducing points, in metres.
    pub margin: f64,
    /// A cell whose variance exceeds this share of what the map says infinitely far away is unknown.
    pub unknown_above: f64,
    /// Most cells a grid may have; a larger area is refused and reported.
    pub max_cells: usize,
}

impl Default for Raster {
    fn default() -> Self {
        Self { resolution: 0.05, margin: 1.0, unknown_above: 0.75, max_cells: 4_000_000 }
    }
}

/// The mapping thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Worker {
    /// How many measurements the inbox holds before a live source loses some.
    pub inbox: usize,
    /// Most observations that batches waiting behind a too fast live source are merged into.
    pub max_merged: usize,
}

impl Default for Worker {
    fn default() -> Self {
        Self { inbox: 4096, max_merged: 5000 }
    }
}

/// What is kept against crashes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Journal {
    /// Whether a journal is kept.
    pub enabled: bool,
    /// Batches between two checkpoints.
    pub checkpoint_batches: u64,
    /// What the node does at its start with the journal it finds.
    pub resume: Resume,
}

impl Default for Journal {
    fn default() -> Self {
        Self { enabled: true, checkpoint_batches: 20, resume: Resume::Unfinished }
    }
}

/// What the node does at its start with the journal it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resume {
    /// Begins a new map.
    Never,
    /// Continues the map if the node before it did not end in good order.
    Unfinished,
    /// Continues the map.
    Always,
}

/// The ROS 2 node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Node {
    /// Reliability of the subscriptions.
    pub reliability: Reliability,
    /// How many messages the middleware keeps for each subscription.
    pub queue: usize,
    /// Most maps published per second: mean, variance, field and cloud.
    pub map_rate: f64,
    /// Most sets of inducing points and paths published per second.
    pub marker_rate: f64,
    /// Reports on `/diagnostics` per second.
    pub diagnostics_rate: f64,
    /// Seconds between two messages in the log that say why nothing is being mapped.
    pub complaint_period: f64,
    /// The folder of saved maps; empty means `magmap` in `$ROS_HOME`, or in `~/.ros`. A node in a namespace takes the folder of that
    /// name in it.
    pub map_folder: String,
    /// The name of the map that is saved and loaded: a file of this name, with `.npz`, in the folder.
    pub map_name: String,
    /// Whether the saved map is loaded at the start, where there is one, and continued.
    pub load_at_start: bool,
    /// Whether the map is saved at the end.
    pub save_at_end: bool,
    /// How many earlier maps of the same name are kept: those that made room for another map.
    pub earlier_maps: usize,
    /// The recording that is played to the node, as NAME#FINGERPRINT; empty for a robot.
    pub recording: String,
}

impl Node {
    /// Name and fingerprint of the recording that is played to the node, if it is one.
    pub fn recording_id(&self) -> Option<(&str, &str)> {
        self.recording.rsplit_once('#').filter(|(_, fingerprint)| !fingerprint.is_empty())
    }
}

impl Default for Node {
    fn default() -> Self {
        Self {
            reliability: Reliability::BestEffort,
            queue: 1000,
            map_rate: 1.0,
            marker_rate: 1.0,
            diagnostics_rate: 1.0,
            complaint_period: 5.0,
            map_folder: String::new(),
            map_name: "map".into(),
            load_at_start: true,
            save_at_end: true,
            earlier_maps: 100,
            recording: String::new(),
        }
    }
}

/// Reliability of the node's subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reliability {
    /// What is lost on the way is not sent again: matches every publisher.
    BestEffort,
    /// What is lost on the way is sent again: matches reliable publishers only.
    Reliable,
}

/// The experiments of `magmap-evaluate`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evaluation {
    /// How the drive of the `stream` experiment is cut into batches.
    pub cut: Cut,
}

/// How a drive is cut into batches of the `stream` experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Twenty equal parts.
    #[default]
    Equal,
    /// As the published scripts do: without the first row, 19 parts of one row less, the rest in the last.
    Published,
}
