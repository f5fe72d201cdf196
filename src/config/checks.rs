//! Which values are possible.

use std::fmt::Display;
use std::ops::RangeInclusive;

use nalgebra::Matrix3;

use super::{Config, Hyperparameters, Likelihood, PoseSource, Problem};

/// The least number of poses between which one can interpolate.
const LEAST_WAITING: usize = 2;

// What follows keeps a slip of the pen, or a file that somebody else wrote, from asking for more memory than there is.

/// Most measurements or messages that wait in one place: hours of them, in some 100 megabytes.
const MOST_WAITING: usize = 1_000_000;

/// Most observations of one batch, whose covariances with the inducing points are one matrix.
const MOST_OBSERVATIONS: usize = 100_000;

/// Most observations whose covariances with each other are computed: 3 gigabytes, where the default takes 0.8.
const MOST_EXACT: usize = 20_000;

/// Most inducing points: 3 gigabytes for each of a few matrices, where the default takes 0.07.
const MOST_INDUCING_POINTS: usize = 20_000;

/// Most steps in a row: they settle in tens.
const MOST_STEPS: usize = 10_000;

/// Most cells of a grid: 0.8 gigabytes, a square of 350 m at 5 cm.
const MOST_CELLS: usize = 50_000_000;

impl Config {
    /// Every impossible value. Their lines are not known here.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut checks = Checks::default();
        self.check_measurements(&mut checks);
        self.check_model(&mut checks);
        self.check_signal(&mut checks);
        self.check_outputs(&mut checks);
        checks.problems
    }

    fn check_measurements(&self, checks: &mut Checks) {
        let Config { sensor, frames, gates, synchronizer, averaging, batch, .. } = self;
        checks.all_finite("sensor.position", &sensor.position);
        checks.all_finite("sensor.orientation", &sensor.orientation);
        checks.all_finite("sensor.hard_iron", &sensor.hard_iron);
        let determinant = Matrix3::from_row_slice(&sensor.soft_iron).determinant();
        let is_calibration = determinant.is_finite() && determinant > 0.0;
        checks.require(
            is_calibration,
            "sensor.soft_iron",
            "the nine numbers of a matrix with a determinant above 0",
            format!("{:?}", sensor.soft_iron),
        );
        let needs_map = frames.pose_source == PoseSource::Transforms;
        let expected = "the name of a frame, because frames.pose_source is transforms";
        checks.require(!needs_map || !frames.map.is_empty(), "frames.map", expected, "no name");
        checks.not_negative("frames.patience", frames.patience);
        checks.positive("frames.jump_distance", frames.jump_distance);
        checks.positive("frames.jump_angle", frames.jump_angle);
        checks.not_negative("gates.minimum_field", gates.minimum_field);
        checks.positive("gates.maximum_field", gates.maximum_field);
        if gates.maximum_field <= gates.minimum_field {
            let expected = format!("more than gates.minimum_field ({})", gates.minimum_field);
            checks.problem("gates.maximum_field", expected, gates.maximum_field);
        }
        checks.not_negative("gates.max_speed", gates.max_speed);
        checks.not_negative("gates.max_gradient", gates.max_gradient);
        checks.not_negative("gates.gradient_allowance", gates.gradient_allowance);
        checks.at_least("gates.reopen_after", gates.reopen_after as usize, 1);
        checks.not_negative("gates.reopen_time", gates.reopen_time);
        checks.not_negative("gates.full_scale", gates.full_scale);
        checks.not_negative("gates.max_repeat", gates.max_repeat);
        checks.positive("synchronizer.max_gap", synchronizer.max_gap);
        checks.within("synchronizer.max_waiting", synchronizer.max_waiting, LEAST_WAITING..=MOST_WAITING);
        checks.not_negative("averaging.spacing", averaging.spacing);
        checks.within("batch.max_observations", batch.max_observations, 0..=MOST_OBSERVATIONS);
        checks.not_negative("batch.max_path", batch.max_path);
        checks.not_negative("batch.max_duration", batch.max_duration);
    }

    fn check_model(&self, checks: &mut Checks) {
        let Config { model, selection, dual_memory, learning, .. } = self;
        checks.finite("model.mean", model.mean);
        checks.not_negative("model.relative_jitter", model.relative_jitter);
        let has_variance = model.degrees_of_freedom > 2.0 && model.degrees_of_freedom.is_finite();
        checks.require(has_variance, "model.degrees_of_freedom", "a finite number above 2", model.degrees_of_freedom);
        checks.all_positive("model.initial", &model.initial);
        checks.inside_unit_interval("selection.delta", selection.delta);
        checks.within("selection.exact_limit", selection.exact_limit, 0..=MOST_EXACT);
        checks.within("selection.max_inducing_points", selection.max_inducing_points, 1..=MOST_INDUCING_POINTS);
        let is_share = (0.0..1.0).contains(&selection.redundancy);
        checks.require(is_share, "selection.redundancy", "at least 0 and less than 1", selection.redundancy);
        let inducing_points = 1..=MOST_INDUCING_POINTS;
        checks.within("dual_memory.inducing_points", dual_memory.inducing_points, inducing_points);
        checks.within("dual_memory.memory_per_batch", dual_memory.memory_per_batch, 0..=MOST_OBSERVATIONS);
        checks.within("dual_memory.max_memory", dual_memory.max_memory, 0..=MOST_OBSERVATIONS);
        let is_share = (0.0..=1.0).contains(&dual_memory.memory_evidence);
        checks.require(is_share, "dual_memory.memory_evidence", "0 to 1", dual_memory.memory_evidence);
        checks.within("dual_memory.max_steps", dual_memory.max_steps, 1..=MOST_STEPS);
        let is_length = dual_memory.step_length > 0.0 && dual_memory.step_length <= 1.0;
        checks.require(is_length, "dual_memory.step_length", "more than 0 and at most 1", dual_memory.step_length);
        checks.all_positive("learning.prior_median", &learning.prior_median);
        checks.all_positive("learning.prior_log_sd", &learning.prior_log_sd);
    }

    /// What a yes/no signal asks for, and what asks for one.
    fn check_signal(&self, checks: &mut Checks) {
        let Config { topics, frames, model, bernoulli, selection, .. } = self;
        checks.positive("bernoulli.constant", bernoulli.constant);
        checks.positive("bernoulli.variance", bernoulli.variance);
        checks.positive("bernoulli.lengthscale", bernoulli.lengthscale);
        checks.positive("bernoulli.prior_log_sd", bernoulli.prior_log_sd);
        if model.likelihood != Likelihood::Bernoulli {
            let expected = "no name, because model.likelihood is not bernoulli";
            checks.require(topics.signal.is_empty(), "topics.signal", expected, &topics.signal);
            return;
        }
        let method = &selection.method;
        let expected = "dual_memory, because no other method maps a yes/no signal (model.likelihood is bernoulli)";
        checks.require(method.is_dual_memory(), "selection.method", expected, method);
        let expected = "the name of a topic of type std_msgs/msg/Bool, because model.likelihood is bernoulli";
        checks.require(!topics.signal.is_empty(), "topics.signal", expected, "no name");
        let expected = "odometry, because the messages of topics.signal name no frame";
        let is_odometry = frames.pose_source == PoseSource::Odometry;
        checks.require(is_odometry, "frames.pose_source", expected, "transforms");
    }

    fn check_outputs(&self, checks: &mut Checks) {
        let Config { raster, worker, journal, node, .. } = self;
        checks.positive("raster.resolution", raster.resolution);
        checks.not_negative("raster.margin", raster.margin);
        checks.positive("raster.unknown_above", raster.unknown_above);
        checks.within("raster.max_cells", raster.max_cells, 1..=MOST_CELLS);
        checks.within("worker.inbox", worker.inbox, 1..=MOST_WAITING);
        checks.within("worker.max_merged", worker.max_merged, 1..=MOST_OBSERVATIONS);
        checks.at_least("journal.checkpoint_batches", journal.checkpoint_batches as usize, 1);
        checks.within("node.queue", node.queue, 1..=MOST_WAITING);
        checks.positive("node.map_rate", node.map_rate);
        checks.positive("node.marker_rate", node.marker_rate);
        checks.positive("node.diagnostics_rate", node.diagnostics_rate);
        checks.positive("node.complaint_period", node.complaint_period);
        let is_name =
            !node.map_name.is_empty() && node.map_name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
        checks.require(
            is_name && !node.map_name.starts_with('.'),
            "node.map_name",
            "letters, digits, '-', '_' and '.', the first no '.'",
            &node.map_name,
        );
        checks.within("node.earlier_maps", node.earlier_maps, 1..=MOST_WAITING);
        checks.require(
            node.recording.is_empty() || node.recording_id().is_some(),
            "node.recording",
            "NAME#FINGERPRINT, or nothing",
            &node.recording,
        );
    }
}

#[derive(Default)]
struct Checks {
    problems: Vec<Problem>,
}

impl Checks {
    fn problem(&mut self, key: &str, expected: impl Display, found: impl Display) {
        let (expected, found) = (Some(expected.to_string()), found.to_string());
        self.problems.push(Problem { key: key.to_owned(), line: None, expected, found, nearest: None });
    }

    fn require(&mut self, holds: bool, key: &str, expected: impl Display, found: impl Display) {
        if !holds {
            self.problem(key, expected, found);
        }
    }

    fn finite(&mut self, key: &str, value: f64) {
        self.require(value.is_finite(), key, "a finite number", value);
    }

    fn all_finite(&mut self, key: &str, values: &[f64]) {
        self.require(values.iter().all(|value| value.is_finite()), key, "finite numbers", format!("{values:?}"));
    }

    fn positive(&mut self, key: &str, value: f64) {
        self.require(value > 0.0 && value.is_finite(), key, "a finite number above 0", value);
    }

    fn all_positive(&mut self, section: &str, values: &Hyperparameters) {
        let Hyperparameters { constant, variance, lengthscale, noise } = values;
        for (name, value) in
            [("constant", constant), ("variance", variance), ("lengthscale", lengthscale), ("noise", noise)]
        {
            self.positive(&format!("{section}.{name}"), *value);
        }
    }

    fn not_negative(&mut self, key: &str, value: f64) {
        self.require(value >= 0.0 && value.is_finite(), key, "a finite number, 0 or above", value);
    }

    fn inside_unit_interval(&mut self, key: &str, value: f64) {
        self.require(value > 0.0 && value < 1.0, key, "more than 0 and less than 1", value);
    }

    fn within(&mut self, key: &str, value: usize, range: RangeInclusive<usize>) {
        self.require(range.contains(&value), key, format!("{} to {}", range.start(), range.end()), value);
    }

    fn at_least(&mut self, key: &str, value: usize, least: usize) {
        self.require(value >= least, key, format!("at least {least}"), value);
    }
}
