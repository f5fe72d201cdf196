//! Every setting of magmap, its default and its meaning, for the command line, the library and the node.
//!
//! Settings come from TOML; those left out have their defaults, which `config/default.toml` lists. Unknown keys, wrong types and
//! values out of range are rejected, all at once, each with its key, its line and what was expected there.

mod declare;
mod error;
mod keys;
mod parsing;
mod ranges;
mod scope;

use std::borrow::Cow;

use nalgebra::{Isometry3, Translation3, UnitQuaternion};
use serde::{Deserialize, Serialize};
use streaming_gp::Shape;
use streaming_gp::methods::Named;

use declare::{Described, Part, choices, section, sections};
use ranges::*;

pub use error::{Error, Problem};
pub use keys::Setting;
pub use scope::{Program, Scope};
pub use toml::Value;

// After a change, generate config/default.toml again; its second line says how.
sections! {
    /// Topics to read. If a name is empty, a recording is searched for the type, and the node reads imu/mag or odom.
    #[scope(Source)]
    #[programs(Mapper, Replay, Localizer, Locate, Calibrate, Info)]
    topics: Topics {
        /// Topic of type sensor_msgs/msg/MagneticField.
        magnetometer: String = String::new(),
        /// Topic of type nav_msgs/msg/Odometry.
        odometry: String = String::new(),
    }

    /// The magnetometer: its pose on the robot, if transforms do not give it, and its calibration.
    #[scope(Intake)]
    sensor: Sensor {
        /// Whether position and orientation replace the transforms of the recording or the robot.
        #[programs(Mapper, Replay, Localizer, Locate, Calibrate, Convert, Info)]
        override_transforms: bool = false,
        /// Position of the sensor in the robot's body frame, in metres.
        #[programs(Mapper, Replay, Localizer, Locate, Calibrate, Convert, Info)]
        position: [f64; 3] = [0.0; 3] => all_finite,
        /// Orientation of the sensor in the robot's body frame: roll, pitch, yaw in radians.
        #[programs(Mapper, Replay, Localizer, Locate, Calibrate, Convert, Info)]
        orientation: [f64; 3] = [0.0; 3] => all_finite,
        /// Hard iron: the robot's own field along the sensor's axes, in microtesla. It is subtracted from every reading.
        hard_iron: [f64; 3] = [0.0; 3] => all_finite,
        /// Soft iron: the 3 x 3 matrix, row by row, that multiplies a reading after the hard iron is subtracted.
        soft_iron: [f64; 9] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0] => calibration_matrix,
        /// How much later readings are stamped than poses of the same moment, in seconds. It is subtracted from the stamps of readings. At 0, a
        /// map of the three axes finds it out.
        delay: f64 = 0.0 => number("-10 to 10", |value| (-10.0..=10.0).contains(&value)),
    }

    /// The map's frame and the source of poses.
    #[scope(Source)]
    frames: Frames {
        /// The frame of the map; empty for the odometry's frame.
        #[programs(Mapper, Replay, Localizer, Calibrate, Info)]
        map: String = String::new(),
        /// Where poses come from.
        #[programs(Mapper, Replay, Calibrate, Info)]
        pose_source: PoseSource = PoseSource::Odometry,
        /// Whether odometry keeps its frame when the robot is switched off or carried, as motion capture and GNSS do. Otherwise a node or a
        /// replay that continues a map of odometry's frame looks for the robot in it first.
        #[programs(Mapper, Replay)]
        odometry_is_fixed: bool = false,
        /// How long a measurement waits for a transform before it is rejected, in seconds between stamps.
        patience: f64 = 10.0 => not_negative,
        /// A transform from the odometry's frame to the map's that moves by more than this between two stamps counts as a jump, in
        /// metres.
        #[programs(Mapper, Replay, Calibrate)]
        jump_distance: f64 = 0.1 => positive,
        /// Rotation of that transform between two stamps that counts as a jump, in radians.
        #[programs(Mapper, Replay, Calibrate)]
        jump_angle: f64 = 0.05 => positive,
    }

    /// Gates that reject implausible data. Every rejection is counted under its reason.
    #[scope(Stream)]
    #[programs(Mapper, Replay, Localizer, Locate, Calibrate, Bench)]
    gates: Gates {
        /// Weakest plausible field strength, in microtesla.
        minimum_field: f64 = 1.0 => not_negative,
        /// Strongest plausible field strength, in microtesla.
        maximum_field: f64 = 1000.0 => positive,
        /// Highest plausible speed between two poses, in metres per second; 0 disables the gate.
        max_speed: f64 = 3.0 => not_negative,
        /// Largest plausible change of the field between two readings, in microtesla per metre; 0 disables the gate.
        max_gradient: f64 = 1000.0 => not_negative,
        /// Change of the field between two readings that is always plausible, at any distance, in microtesla.
        gradient_allowance: f64 = 40.0 => not_negative,
        /// Longest path along which a field that changes suddenly, and back, is rejected, in metres: something was switched on for a moment.
        /// 0 disables the gate.
        max_pulse: f64 = 1.0 => not_negative,
        /// A gate that has rejected this number of consecutive measurements, for at least reopen_time, reopens and reports it: its
        /// reference was wrong.
        reopen_after: u32 = 5 => at_least(1),
        /// How long a gate of positions or fields rejects consecutive measurements before it reopens, in seconds.
        reopen_time: f64 = 0.5 => not_negative,
        /// Full scale of the sensor's axes as they are published, in microtesla: a reading is saturated if an axis reaches it; 0 if
        /// unknown.
        full_scale: f64 = 0.0 => not_negative,
        /// How far the sensor may move while one of its axes does not change by a single bit, in metres; 0 disables the gate.
        max_repeat: f64 = 0.25 => not_negative,
        /// Largest number of readings with the same stamp; if there are more, their clock has stopped. 0 disables the gate.
        max_same_stamp: u32 = 20,
    }

    /// Matching readings to poses.
    #[scope(Intake)]
    synchronizer: Synchronizer {
        /// Longest time between two poses across which a reading's pose is interpolated, in seconds.
        max_gap: f64 = 0.5 => positive,
        /// Largest number of readings that wait for their poses before the oldest is rejected; as many poses are kept for late
        /// readings.
        max_waiting: usize = 10_000 => within(2..=MOST_WAITING), // Interpolation needs two poses.
    }

    /// Averaging of readings along the path.
    #[scope(Stream)]
    averaging: Averaging {
        /// Length of path whose readings are averaged into one observation, in metres; 0 keeps every reading.
        spacing: f64 = 0.05 => not_negative,
    }

    /// A batch is complete when it reaches the first of these limits; 0 disables a limit.
    #[scope(Stream)]
    batch: Batch {
        /// Largest number of observations in a batch.
        max_observations: usize = 200 => within(0..=MOST_OBSERVATIONS),
        /// Longest path in a batch, in metres.
        max_path: f64 = 5.0 => not_negative,
        /// Longest duration of a batch, in seconds.
        max_duration: f64 = 10.0 => not_negative,
    }

    /// The Gaussian process and the initial values of its hyperparameters.
    #[scope(Map)]
    model: Model {
        /// The quantity that is mapped.
        #[programs(Mapper, Replay, Localizer, Locate, Info)]
        field: Mapped = Mapped::Auto,
        /// Shape of the covariance function: matern12, matern32, matern52 or squared_exponential.
        kernel: Shape = Shape::Matern52,
        /// Whether each axis has a lengthscale of its own.
        lengthscale_per_axis: bool = false,
        /// Whether a constant is added to the covariance, for the ambient field.
        constant: bool = true,
        /// The prior mean of the field, in microtesla.
        mean: f64 = 0.0 => finite,
        /// Jitter: added to the diagonal of the inducing points' covariance, relative to the prior variance.
        relative_jitter: f64 = 1e-6 => not_negative,
        /// Distribution of the noise.
        likelihood: Likelihood = Likelihood::Gaussian,
        /// Degrees of freedom of the noise if it is student_t, above 2: the fewer, the heavier its tails.
        degrees_of_freedom: f64 = 4.0 => number("a finite number above 2", |value| value > 2.0 && value.is_finite()),
        /// Initial value of each hyperparameter of a new map: variances in microtesla squared, the lengthscale in metres.
        #[scope(Stream)]
        initial: Hyperparameters = Hyperparameters { constant: 500.0, variance: 150.0, lengthscale: 0.7, noise: 2.0 },
    }

    /// Mapping of the field's three axes, unless model.field is strength. These replace model.initial, selection.delta and the prior in
    /// learning, which are those of the strength.
    #[scope(Stream)]
    vector: Vector {
        /// Whether there may be sources of the field above the sensor as well as below: steel in the ceiling, in walls, in shelves. With
        /// false all of them are below, as on a steel floor under an open sky.
        #[scope(Map)]
        sources_above: bool = true,
        /// Initial value of each hyperparameter: variances in microtesla squared, of the constant of each axis and of a horizontal axis
        /// around it, and the lengthscale in metres.
        #[programs(Mapper, Replay, Calibrate, Bench)]
        initial: VectorHyperparameters = VectorHyperparameters {
            constant: 1000.0,
            variance: 112.0,
            variance_above: 10.0,
            lengthscale: 0.94,
            noise: 1.0,
        },
        /// Median of each hyperparameter under the prior.
        prior_median: VectorHyperparameters = VectorHyperparameters {
            constant: 1000.0,
            variance: 40.0,
            variance_above: 10.0,
            lengthscale: 0.94,
            noise: 1.0,
        },
        /// Standard deviation of the logarithm of each hyperparameter under the prior. Those of the variances are wide: either side may
        /// have next to no sources. The lengthscale's is small: readings of one path would favour a length that predicts other paths
        /// worse.
        #[programs(Mapper, Replay, Calibrate, Bench)]
        prior_log_sd: VectorHyperparameters = VectorHyperparameters {
            constant: 0.5,
            variance: 1.5,
            variance_above: 1.5,
            lengthscale: 0.04,
            noise: 0.5,
        },
        /// Degrees of freedom of the lengthscale's prior, Student's t in its logarithm: the fewer, the sooner it gives way where
        /// readings contradict it clearly, as in a room where all steel is far away.
        prior_degrees_of_freedom: f64 = 20.0 => positive,
        /// Observations of a batch up to which the prior counts once; in a larger batch it counts in proportion, so that what is learnt
        /// depends less on how a drive is cut into batches. 0: always once.
        prior_observations: usize = 100 => within(0..=MOST_OBSERVATIONS),
        /// Power of the likelihood: an observation says as much as this share of an independent one, since neighbours share errors of
        /// place and heading.
        likelihood_power: f64 = 0.4 => number("more than 0 and at most 1", |value| value > 0.0 && value <= 1.0),
        /// Power of power expectation propagation, with which the posterior is approximated unless selection.method is power_ep with
        /// one of its own; 0 is variational inference, which treats what inducing points do not represent as noise.
        power_ep: f64 = 0.5 => number("0 to 1", |value| (0.0..=1.0).contains(&value)),
        /// For vips: the fraction of the information in a batch that may be lost for lack of inducing points.
        delta: f64 = 0.178 => number("more than 0 and less than 1", |value| value > 0.0 && value < 1.0),
        /// Standard deviation of each component of the sensor's hard iron under the prior, in microtesla; 0 for none.
        #[scope(Map)]
        hard_iron: f64 = 5.0 => not_negative,
        /// Standard deviation of each component of the bias that grows with the speed under the prior, in microtesla per metre per
        /// second; 0 for none.
        #[scope(Map)]
        speed_bias: f64 = 0.0 => not_negative,
    }

    /// Changes of the building since the map was begun. A run that continues a map looks for them.
    #[scope(Source)]
    #[programs(Mapper, Replay)]
    changes: Changes {
        /// Whether observations of earlier runs are withdrawn from the map where readings contradict them along a metre and more: they stay
        /// in the file. Not where the path is corrected.
        enabled: bool = true,
    }

    /// Correction of the path, from which the map is made again, while the robot drives or at the end of a replay: by the field itself (SLAM),
    /// which takes the three axes and a robot that comes back to where it was; or by the poses of another SLAM. The map has a frame of its own
    /// then, which frames.map names; "map" if that is empty.
    #[scope(Stream)]
    #[programs(Mapper, Replay)]
    slam: Slam {
        /// Whether the field corrects the path. The three axes are then mapped; model.field = "strength" is rejected.
        #[scope(Source)]
        #[programs(Mapper, Replay, Info)]
        enabled: bool = false,
        /// Whether the node publishes the transform from the frame of odometry to that of the map.
        #[scope(Run)]
        #[programs(Mapper)]
        tf_broadcast: bool = true,
        /// How far ahead that transform is dated, in seconds: it is valid until the next one.
        #[scope(Run)]
        #[programs(Mapper)]
        transform_tolerance: f64 = 0.1 => not_negative,
        /// File with the final poses of another SLAM, at which the map is made instead of those of odometry: text, a line "stamp x y z qx qy
        /// qz qw" for each pose of the robot's body. Empty for none.
        #[scope(Source)]
        #[programs(Replay)]
        trajectory: String = String::new(),
        /// Topic on which another SLAM publishes the poses of the robot's body, each with its stamp, in the frame of the map: whenever they
        /// change, the map is made again. Empty for none.
        #[scope(Source)]
        #[programs(Mapper)]
        path_topic: String = String::new(),
        /// Type of the messages on that topic.
        #[scope(Source)]
        #[programs(Mapper)]
        path_type: PathType = PathType::Path,
        /// Length of path between two poses that are estimated, whose readings are averaged, in metres.
        pose_spacing: f64 = 0.1 => positive,
        /// Variance of the noise of such an average, over that of an observation of the map: neighbours share errors of place and heading.
        noise_factor: f64 = 16.0 => positive,
        /// Odometry: standard deviation of the relative error of distances, which is constant during a drive. The field does not tell it: a path
        /// and a field that are stretched alike explain the readings equally well. It is part of covariances.
        odometry_scale: f64 = 0.03 => positive,
        /// Odometry: standard deviation of the steady drift of heading, in radians per metre, which is estimated.
        odometry_drift: f64 = 0.02 => positive,
        /// Odometry: standard deviation of the distance after a metre, in metres.
        odometry_forward: f64 = 0.01 => positive,
        /// Odometry: standard deviation of the movement to the side between two poses, in metres.
        odometry_sideways: f64 = 0.002 => positive,
        /// Odometry: standard deviation of the heading after a metre, in radians.
        odometry_heading: f64 = 0.02 => positive,
        /// Odometry: standard deviation of the heading after a radian of rotation, in radians.
        odometry_turning: f64 = 0.01 => positive,
    }

    /// Local models on square tiles: the cost of an update does not depend on the size of the map, and each tile has its own
    /// hyperparameters.
    #[scope(Map)]
    tiles: Tiles {
        /// Side of a tile, in metres: some four to ten lengthscales; 0 for one model of the whole map. The map begins in the middle of a
        /// tile.
        size: f64 = 6.0 => not_negative,
        /// How far around its square a tile learns, in metres; 0 for 1.5 initial lengthscales. At most half a tile.
        halo: f64 = 0.0 => not_negative,
        /// How far around its square a tile predicts, in metres, fading into its neighbours; 0 for half an initial lengthscale. At
        /// most the halo.
        band: f64 = 0.0 => not_negative,
        /// Number of threads that learn, each one tile at a time; 0 for one on each core. The map does not depend on it.
        #[scope(Run)]
        #[programs(Mapper, Replay, Bench)]
        threads: usize = 0 => within(0..=MOST_THREADS),
        /// Memory for tiles, in megabytes; the least recently used tiles are in the file of the map only, and are read when they are
        /// needed. 0 keeps all in memory. The map does not depend on it.
        #[scope(Run)]
        memory: f64 = 30.0 => not_negative,
    }

    /// The number of inducing points and how they are chosen.
    #[scope(Stream)]
    selection: Selection {
        /// Method: vips, conditional_variance, oips, fixed or power_ep. A parameter may follow, as in oips=0.93.
        method: Named = Named::default(),
        /// For vips: the fraction of the information in a batch that may be lost for lack of inducing points; a smaller
        /// one gives a larger and more exact map.
        delta: f64 = 0.32 => number("more than 0 and less than 1", |value| value > 0.0 && value < 1.0),
        /// Whether the threshold of vips is kept from vanishing where there is nothing to model.
        guards: bool = true,
        /// The ceiling that the evidence lower bound is compared with when inducing points are added.
        ceiling: Ceiling = Ceiling::Auto,
        /// Largest number of observations in a batch for which the exact ceiling is computed; above it, the upper bound is used.
        exact_limit: usize = 10_000 => within(0..=MOST_EXACT),
        /// Largest number of inducing points in the map; a report says when it is reached.
        max_inducing_points: usize = 3000 => within(1..=MOST_INDUCING_POINTS),
        /// An inducing point is removed if its variance given the others, relative to the prior variance, is below this.
        redundancy: f64 = 1e-6 => number("at least 0 and less than 1", |value| (0.0..1.0).contains(&value)),
    }

    /// Learning of the hyperparameters.
    #[scope(Stream)]
    learning: Learning {
        /// Largest number of evaluations of bound and gradient per batch; 0 keeps the hyperparameters as they are.
        max_evaluations: usize = 60,
        /// A batch with fewer observations leaves the hyperparameters as they are: the prior would outweigh it.
        min_observations: usize = 20,
        /// Number of observations before a batch that count towards the variance of the noise; 0 learns it from each batch alone.
        noise_memory: u32 = 1000,
        /// Whether the log-normal prior of the hyperparameters is used.
        prior: bool = true,
        /// Median of each hyperparameter under the prior: variances in microtesla squared, the lengthscale in metres.
        prior_median: Hyperparameters =
            Hyperparameters { constant: 500.0, variance: 150.0, lengthscale: 0.7, noise: 2.0 },
        /// Standard deviation of the logarithm of each hyperparameter under the prior.
        prior_log_sd: Hyperparameters = Hyperparameters { constant: 0.5, variance: 0.4, lengthscale: 0.2, noise: 0.5 },
    }

    /// The published grid.
    #[scope(Output)]
    raster: Raster {
        /// Side of a cell, in metres.
        resolution: f64 = 0.05 => positive,
        /// How far the grid extends beyond the path and the outermost inducing points, in metres.
        margin: f64 = 1.0 => not_negative,
        /// A cell is unknown if its variance exceeds this fraction of the variance infinitely far away.
        unknown_above: f64 = 0.75 => positive,
        /// Largest number of cells in a grid; a larger area is rejected and reported.
        max_cells: usize = 4_000_000 => within(1..=MOST_CELLS),
    }

    /// Finding the robot in a finished map, or in the one that it continues. Names are those of nav2's AMCL where the meaning is the
    /// same; noise is per metre and per radian, so that it does not depend on the distance between updates.
    #[scope(Source)]
    #[programs(Mapper, Replay, Localizer, Locate, Merge, Bench)]
    localization: Localization {
        /// The file of the map, or the folder of a replay; empty for the map that the mapper saves, node.map_folder and
        /// node.map_name.
        #[programs(Localizer)]
        map: String = String::new(),
        /// Whether the localizer starts at initial_pose.
        #[programs(Localizer)]
        set_initial_pose: bool = false,
        /// Pose of the robot's body at startup in the frame of the map, in metres and radians, if set_initial_pose.
        #[programs(Localizer)]
        initial_pose: InitialPose = InitialPose { x: 0.0, y: 0.0, z: 0.0, yaw: 0.0 },
        /// Whether the localizer starts at the last known pose, from the file beside the map, when set_initial_pose is false. Without
        /// such a file, or with false, the robot may be anywhere.
        #[programs(Localizer)]
        load_last_pose: bool = true,
        /// Rate at which the last pose is saved, in hertz, and at the end; 0 for never.
        #[programs(Localizer)]
        save_pose_rate: f64 = 0.5 => not_negative,
        /// Whether the localizer publishes the transform from the frame of odometry to that of the map.
        #[programs(Localizer)]
        tf_broadcast: bool = true,
        /// How far ahead that transform is dated, in seconds: it is valid until the next one.
        #[programs(Localizer)]
        transform_tolerance: f64 = 0.1 => not_negative,
        /// Smallest number of particles.
        #[programs(Mapper, Replay, Localizer, Locate, Merge)]
        min_particles: usize = 500 => within(1..=MOST_PARTICLES),
        /// Largest number of particles, and their number when the robot may be anywhere.
        #[programs(Mapper, Replay, Localizer, Locate, Merge)]
        max_particles: usize = 20_000 => within(1..=MOST_PARTICLES),
        /// Largest error of the particles' distribution that decides their number (KLD sampling).
        pf_err: f64 = 0.05 => number("more than 0 and less than 1", |value| value > 0.0 && value < 1.0),
        /// Quantile of the standard normal distribution at the probability with which the error stays below pf_err.
        pf_z: f64 = 2.33 => not_negative,
        /// Odometry: variance of the heading per radian of rotation, in radians squared.
        alpha1: f64 = 0.0005 => not_negative,
        /// Odometry: variance of the heading per metre, in radians squared.
        alpha2: f64 = 0.0005 => not_negative,
        /// Odometry: variance of the distance per metre, in metres squared.
        alpha3: f64 = 0.0002 => not_negative,
        /// Odometry: variance of the distance per radian of rotation, in metres squared.
        alpha4: f64 = 0.0001 => not_negative,
        /// Odometry: standard deviation of the relative error of distances, which is constant during a drive and is estimated.
        odometry_scale: f64 = 0.04 => not_negative,
        /// Odometry: standard deviation of the steady drift of heading, in radians per metre, which is estimated.
        odometry_drift: f64 = 0.012 => not_negative,
        /// Length of path between two updates, whose readings are averaged, in metres.
        #[programs(Localizer, Locate, Bench)]
        update_min_d: f64 = 0.05 => positive,
        /// Rotation after which there is an update however short the path was, in radians.
        #[programs(Localizer, Locate, Bench)]
        update_min_a: f64 = 0.2 => positive,
        /// Decay rate of the slow average of the readings' likelihood.
        recovery_alpha_slow: f64 = 0.001 => rate,
        /// Decay rate of the fast average: particles are drawn anew where it falls below the slow one.
        recovery_alpha_fast: f64 = 0.1 => rate,
        /// Distance over which errors of map and readings are shared, in metres: readings within it count as one.
        error_length: f64 = 0.6 => positive,
        /// Standard deviation of places in the map itself, in metres: of the poses it was learnt from.
        map_accuracy: f64 = 0.03 => not_negative,
        /// Standard deviation of the difference between the bias of the sensor and that of the map, on each axis, in microtesla. Set it
        /// above 0 for another robot than the one that made the map: the difference is then estimated, in a map of the three axes.
        bias_deviation: f64 = 0.0 => not_negative,
        /// Distance between the nodes of the grid from which the map is looked up, in metres; at most an eighth of its lengthscale
        /// is used.
        resolution: f64 = 0.1 => positive,
        /// How far the map is looked up beyond its outermost inducing points, in metres.
        margin: f64 = 1.0 => not_negative,
        /// Largest standard deviation of the place while the state is tracking, in metres.
        tracking_deviation: f64 = 0.5 => positive,
        /// Distance over which readings have to agree with one place before the state is tracking, in metres.
        proving_distance: f64 = 3.0 => not_negative,
        /// Distance over which readings have to disagree with the map before the state is lost, in metres.
        losing_distance: f64 = 1.0 => not_negative,
        /// Distance without agreement with one place after which the state is lost, in metres. The distance counts from the start, and
        /// again from where readings disagree.
        searching_distance: f64 = 3.5 => not_negative,
        /// Seed of the random numbers: the same measurements, settings and seed give the same poses.
        seed: u64 = 1,
    }

    /// The mapping thread.
    #[scope(Run)]
    #[programs(Mapper)]
    mapping: Mapping {
        /// Number of measurements that wait for the thread before those of a live source are dropped.
        #[programs(Mapper, Localizer)]
        inbox: usize = 4096 => within(1..=MOST_WAITING),
        /// Largest number of observations to which waiting batches are merged if a live source is too fast.
        max_merged: usize = 5000 => within(1..=MOST_OBSERVATIONS),
    }

    /// The file of the map, which protects it against crashes: every step that leads to the map, and regular checkpoints.
    #[scope(Run)]
    store: Store {
        /// Batches between two checkpoints.
        checkpoint_batches: u64 = 20 => at_least(1),
        /// Whether the node continues the unfinished map of a node that did not shut down properly.
        #[programs(Mapper)]
        resume: bool = true,
    }

    /// The ROS 2 node.
    #[scope(Run)]
    #[programs(Mapper)]
    node: Node {
        /// Reliability of the subscriptions.
        #[programs(Mapper, Localizer)]
        reliability: Reliability = Reliability::BestEffort,
        /// Number of messages that the middleware keeps for each subscription.
        #[programs(Mapper, Localizer)]
        queue: usize = 1000 => within(1..=MOST_WAITING),
        /// Largest rate at which maps are published: mean, variance, field and cloud, in hertz.
        #[scope(Output)]
        map_rate: f64 = 1.0 => positive,
        /// Largest number of cells of a map that is published whole each time. A larger map is published whole to new subscribers, when it
        /// grows, and every 30 s; in between, ~/mean_updates and ~/variance_updates have the cells that changed.
        #[scope(Output)]
        whole_map_cells: usize = 250_000,
        /// Largest rate at which inducing points and the path are published, in hertz.
        #[scope(Output)]
        marker_rate: f64 = 1.0 => positive,
        /// Rate of the reports on /diagnostics, in hertz.
        #[scope(Output)]
        #[programs(Mapper, Localizer)]
        diagnostics_rate: f64 = 1.0 => positive,
        /// Time between two log messages that say why nothing is being mapped, in seconds.
        #[scope(Output)]
        #[programs(Mapper, Localizer)]
        complaint_period: f64 = 5.0 => positive,
        /// Folder of saved maps; empty for magmap in $ROS_HOME, or in ~/.ros. A node in a namespace uses the folder of that name in
        /// it.
        #[programs(Mapper, Localizer)]
        map_folder: String = String::new(),
        /// Name of the map that is saved and loaded: its file in the folder, without .magmap.
        #[scope(Output)]
        #[programs(Mapper, Localizer)]
        map_name: String = "map".into() => file_name,
        /// Whether a saved map is loaded at startup and continued.
        load_at_start: bool = true,
        /// Number of earlier maps of the same name to keep, which another map has replaced. The oldest are removed first.
        #[programs(Mapper, Replay)]
        earlier_maps: usize = 100 => within(1..=MOST_WAITING),
        /// The recording that is played to the node, as NAME#FINGERPRINT; empty on a robot. No recording is mapped twice into one
        /// map.
        recording: String = String::new(),
    }

    /// The experiments of magmap-evaluate.
    #[scope(Run)]
    #[programs(Laboratory)]
    evaluation: Evaluation {
        /// How the drive of the stream experiment is divided into batches.
        cut: Cut = Cut::Equal,
    }
}

choices! {
    PoseSource of "frames.pose_source" {
        /// Odometry messages, moved into the map's frame.
        Odometry = "odometry",
        /// The pose of the sensor in the map's frame, from transforms at each reading's stamp.
        Transforms = "transforms",
    }

    PathType of "slam.path_type" {
        /// Stamped poses: nav_msgs/msg/Path.
        Path = "path",
        /// The graph of slam_toolbox: slam_toolbox/msg/PoseGraph, with the stamps of its nodes on the topic new_node_event beside it.
        PoseGraph = "pose_graph",
    }

    Mapped of "model.field" {
        /// The strength of the field: needs no orientation of the sensor.
        Strength = "strength",
        /// The three axes of the field and the hard iron of the sensor: needs the orientation of the sensor.
        Vector = "vector",
        /// The three axes where they agree with the physics of a magnetic field and predict the strength no worse, the strength
        /// otherwise: chosen after 20, 30, 40 and 80 m of a new map, which begins as one of strengths. A map that was begun as one of the
        /// strength or of the three axes remains that.
        Auto = "auto",
    }

    Likelihood of "model.likelihood" {
        /// Every reading has the same weight.
        Gaussian = "gaussian",
        /// Student's t has heavy tails: gross outliers have little weight, in the averages along the path and in the model.
        StudentT = "student_t",
    }

    Ceiling of "selection.ceiling" {
        /// The bound with every observation an inducing point if the batch is small enough, the upper bound otherwise.
        Auto = "auto",
        /// Always the upper bound.
        Upper = "upper",
    }

    Reliability of "node.reliability" {
        /// Lost messages are not sent again: matches every publisher.
        BestEffort = "best_effort",
        /// Lost messages are sent again: matches reliable publishers only.
        Reliable = "reliable",
    }

    Cut of "evaluation.cut" {
        /// Twenty equal parts.
        Equal = "equal",
        /// The parts of the published scripts: without the first row, 19 parts of one row less, the rest in the last.
        Published = "published",
    }
}

section! {
    /// A number for each kind of hyperparameter.
    #[serde(deny_unknown_fields)]
    Hyperparameters {
        /// Variance of the constant.
        constant: f64 => positive,
        /// Variance of the field around the constant.
        variance: f64 => positive,
        /// Lengthscale.
        lengthscale: f64 => positive,
        /// Variance of the noise; for Student's t, the square of its scale.
        noise: f64 => positive,
    }
}

section! {
    /// A number for each kind of hyperparameter of the three axes.
    #[serde(deny_unknown_fields)]
    VectorHyperparameters {
        /// Variance of the constant.
        constant: f64 => positive,
        /// Variance of the field around the constant that sources below the sensor cause.
        variance: f64 => positive,
        /// Variance of the field around the constant that sources above the sensor cause, if vector.sources_above.
        variance_above: f64 => positive,
        /// Lengthscale.
        lengthscale: f64 => positive,
        /// Variance of the noise; for Student's t, the square of its scale.
        noise: f64 => positive,
    }
}

section! {
    /// A pose in the plane.
    #[serde(deny_unknown_fields)]
    InitialPose {
        /// In metres.
        x: f64 => finite,
        /// In metres.
        y: f64 => finite,
        /// In metres; ignored.
        z: f64 => finite,
        /// Counterclockwise from the x axis, in radians.
        yaw: f64 => finite,
    }
}

impl Sensor {
    /// The transform from the sensor's frame to the robot's body frame.
    pub fn mount(&self) -> Isometry3<f64> {
        let [roll, pitch, yaw] = self.orientation;
        Isometry3::from_parts(Translation3::from(self.position), UnitQuaternion::from_euler_angles(roll, pitch, yaw))
    }
}

/// The frame of a map that has one of its own, if no other is named.
pub const MAP_FRAME: &str = "map";

impl Config {
    /// Whether the path is corrected, while the robot drives or once the drive is over: the whole trajectory is needed.
    pub fn corrects_path(&self) -> bool {
        self.slam.enabled || !self.slam.trajectory.is_empty() || self.follows_other_slam()
    }

    /// Whether another SLAM corrects the path while the robot drives.
    pub fn follows_other_slam(&self) -> bool {
        !self.slam.path_topic.is_empty()
    }

    /// Whether a run that continues a map looks for changes of the building since.
    pub fn finds_changes(&self) -> bool {
        self.changes.enabled && !self.corrects_path()
    }

    /// Whether the delay of the readings is estimated while mapping: with three axes, unless `sensor.delay` is set. Where the path is corrected
    /// by the field, SLAM estimates it.
    pub fn finds_delay(&self) -> bool {
        self.sensor.delay == 0.0 && self.model.field != Mapped::Strength && !self.corrects_path()
    }

    /// Whether the frame of odometry may be another one in the next run, and nobody else says where it is in the map.
    pub fn may_odometry_restart(&self) -> bool {
        let is_of_odometry = self.slam.enabled || self.frames.map.is_empty() && !self.follows_other_slam();
        is_of_odometry && self.frames.pose_source == PoseSource::Odometry && !self.frames.odometry_is_fixed
    }

    /// The frame of the map, unless that is the frame of odometry; empty then. Where the path is corrected it never is.
    pub fn map_frame(&self) -> &str {
        match self.frames.map.as_str() {
            "" if self.corrects_path() => MAP_FRAME,
            frame => frame,
        }
    }

    /// Whether the three axes are mapped in any case, so that readings of a sensor whose mount is unknown are of no use.
    pub fn needs_mount(&self) -> bool {
        self.decided(Mapped::Strength).model.field == Mapped::Vector
    }

    /// Whether magmap chooses what is mapped. SLAM needs the three axes.
    pub fn is_undecided(&self) -> bool {
        self.model.field == Mapped::Auto && !self.slam.enabled
    }

    /// These settings for a map of this quantity, where they leave the choice to magmap.
    pub fn decided(&self, field: Mapped) -> Cow<'_, Self> {
        if self.model.field != Mapped::Auto {
            return Cow::Borrowed(self);
        }
        let mut config = self.clone();
        config.model.field = if self.slam.enabled { Mapped::Vector } else { field };
        Cow::Owned(config)
    }
}

/// Width of a tile's halo in initial lengthscales, unless it is set. More gains nothing.
const HALO: f64 = 1.5;

/// Width of a tile's band in initial lengthscales, unless it is set.
const BAND: f64 = 0.5;

impl Tiles {
    /// Widths of halo and band, in metres: as they are set, or from the initial lengthscale in `config`, as far as a tile allows.
    pub fn widths(&self, config: &Config) -> [f64; 2] {
        let lengthscale = match config.model.field {
            Mapped::Vector => config.vector.initial.lengthscale,
            Mapped::Strength | Mapped::Auto => config.model.initial.lengthscale,
        };
        let halo = if self.halo > 0.0 { self.halo } else { (HALO * lengthscale).min(0.5 * self.size) };
        let band = if self.band > 0.0 { self.band } else { (BAND * lengthscale).min(halo) };
        [halo, band]
    }
}

impl Node {
    /// Name and fingerprint of the recording that is played to the node, if there is one.
    pub fn recording_id(&self) -> Option<(&str, &str)> {
        self.recording.rsplit_once('#').filter(|(_, fingerprint)| !fingerprint.is_empty())
    }
}
