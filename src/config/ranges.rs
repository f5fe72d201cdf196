//! Which values are possible: the ranges of single settings, and what one setting requires of another.

use std::fmt::Display;
use std::ops::RangeInclusive;

use nalgebra::Matrix3;

use super::declare::Described;
use super::{Config, Mapped, PoseSource, Problem, Slam};

// These limits keep a typing error, or somebody else's file, from allocating more memory than there is.

/// Most measurements or messages that wait in one place: hours of them, in about 100 megabytes.
pub(super) const MOST_WAITING: usize = 1_000_000;

/// Most observations in a batch, whose covariances with the inducing points are one matrix.
pub(super) const MOST_OBSERVATIONS: usize = 100_000;

/// Most observations whose covariances with each other are computed: 3 gigabytes; the default takes 0.8.
pub(super) const MOST_EXACT: usize = 20_000;

/// Most inducing points: 3 gigabytes for each of a few matrices; the default takes 0.07.
pub(super) const MOST_INDUCING_POINTS: usize = 20_000;

/// Most threads that learn.
pub(super) const MOST_THREADS: usize = 1024;

/// Most particles: 0.1 gigabytes.
pub(super) const MOST_PARTICLES: usize = 1_000_000;

/// Most cells of a grid: 0.8 gigabytes, a square of 350 m at 5 cm.
pub(super) const MOST_CELLS: usize = 50_000_000;

/// Fails with what was expected.
type Check = Result<(), String>;

fn require(holds: bool, expected: &str) -> Check {
    if holds { Ok(()) } else { Err(expected.to_owned()) }
}

pub(super) fn number(expected: &'static str, holds: impl Fn(f64) -> bool) -> impl Fn(&f64) -> Check {
    move |&value| require(holds(value), expected)
}

pub(super) fn finite(value: &f64) -> Check {
    require(value.is_finite(), "a finite number")
}

pub(super) fn positive(value: &f64) -> Check {
    require(*value > 0.0 && value.is_finite(), "a finite number above 0")
}

pub(super) fn not_negative(value: &f64) -> Check {
    require(*value >= 0.0 && value.is_finite(), "a finite number, 0 or above")
}

pub(super) fn rate(value: &f64) -> Check {
    require((0.0..=1.0).contains(value), "0 to 1")
}

pub(super) fn all_finite(values: &[f64; 3]) -> Check {
    require(values.iter().all(|value| value.is_finite()), "finite numbers")
}

pub(super) fn within(range: RangeInclusive<usize>) -> impl Fn(&usize) -> Check {
    move |value| require(range.contains(value), &format!("{} to {}", range.start(), range.end()))
}

pub(super) fn at_least<T: PartialOrd + Display>(least: T) -> impl Fn(&T) -> Check {
    move |value| require(*value >= least, &format!("at least {least}"))
}

pub(super) fn calibration_matrix(rows: &[f64; 9]) -> Check {
    let determinant = Matrix3::from_row_slice(rows).determinant();
    require(determinant.is_finite() && determinant > 0.0, "the nine numbers of a matrix with a determinant above 0")
}

pub(super) fn file_name(name: &str) -> Check {
    let is_plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    require(is_plain && !name.starts_with('.'), "letters, digits, '-', '_' and '.', not beginning with '.'")
}

impl Config {
    /// Every value that is out of range or contradicts another.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = self.out_of_range();
        self.check_combinations(&mut problems);
        problems
    }

    /// Every value that is out of range, whatever the others are.
    pub(super) fn out_of_range(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        self.check("", &mut problems);
        problems
    }

    fn check_combinations(&self, problems: &mut Vec<Problem>) {
        let Config { frames, gates, tiles, localization, node, .. } = self;
        let has_transforms = frames.pose_source == PoseSource::Transforms;
        if self.slam.enabled && self.model.field == Mapped::Strength {
            let expected = "vector or auto with slam.enabled: the strength alone does not say where the robot is";
            problems.push(Problem::wrong("model.field", expected, "strength"));
        }
        if self.corrects_path() && has_transforms {
            let expected = "odometry where the path is corrected (slam): corrections move odometry";
            problems.push(Problem::wrong("frames.pose_source", expected, "transforms"));
        }
        let Slam { trajectory, path_topic, .. } = &self.slam;
        for (key, given) in [("slam.trajectory", trajectory), ("slam.path_topic", path_topic)] {
            if self.slam.enabled && !given.is_empty() {
                let expected = "nothing with slam.enabled: the path is corrected by the field or given, not both";
                problems.push(Problem::wrong(key, expected, given));
            }
        }
        let [halo, band] = tiles.widths(self);
        if tiles.size > 0.0 && tiles.size < 2.0 * halo {
            let expected = format!("0, or at least twice the halo of {halo} m");
            problems.push(Problem::wrong("tiles.size", expected, tiles.size));
        }
        if tiles.size > 0.0 && halo < band {
            problems.push(Problem::wrong("tiles.band", format!("at most the halo of {halo} m"), band));
        }
        if localization.max_particles < localization.min_particles {
            let expected = format!("at least localization.min_particles ({})", localization.min_particles);
            problems.push(Problem::wrong("localization.max_particles", expected, localization.max_particles));
        }
        if gates.maximum_field <= gates.minimum_field {
            let expected = format!("more than gates.minimum_field ({})", gates.minimum_field);
            problems.push(Problem::wrong("gates.maximum_field", expected, gates.maximum_field));
        }
        if has_transforms && frames.map.is_empty() {
            let expected = "the name of a frame, because frames.pose_source is transforms";
            problems.push(Problem::wrong("frames.map", expected, ""));
        }
        if !node.recording.is_empty() && node.recording_id().is_none() {
            problems.push(Problem::wrong("node.recording", "NAME#FINGERPRINT, or nothing", &node.recording));
        }
    }
}
