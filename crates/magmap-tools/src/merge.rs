//! Several maps as one: runs of other days and of other robots, each in a frame of its own.
//!
//! The first map gives the frame. Every other one is joined as soon as it is proven where it is in one that is joined already
//! ([`magmap::registration`]) and, refined against all of them, explains the field. The merged map is the fold of all trajectories, each moved as
//! a whole, with the difference in hard iron between its sensor and the first one removed.

mod picture;

use std::fmt;
use std::path::{Path, PathBuf};

use magmap::config::{self, Config, Mapped};
use magmap::field::map::FieldMap;
use magmap::field::totals::Totals;
use magmap::localization;
use magmap::mapping::mapper::{Progress, SourceRun};
use magmap::mapping::path;
use magmap::mapping::pipeline::{OdometryInMap, Pipeline};
use magmap::mapping::stop::StopSignal;
use magmap::particle_filter::lookup::NothingKnown;
use magmap::registration::{AGREEMENT, Driven, Evidence, Given, Placed, Refined, UNEXPLAINED, Way, refine};
use magmap::sensing::reading::Observation;
use magmap::store::checkpoint::{Checkpoint, Stream};
use magmap::store::{self, map_file};
use magmap::trajectory::{Trajectory, fold};
use nalgebra::{Isometry2, Isometry3, Vector3};

/// Most rounds in which each map is refined against all others.
const MOST_ROUNDS: usize = 20;

/// A round in which no map moves farther than this, in metres, is the last.
const SETTLED: f64 = 1e-4;

/// Observations are of one time within this, in seconds: it moves by less than its size meanwhile.
const SAME_TIME: f64 = 0.2;

/// Observations are of one place within this, in metres: no two robots are so near each other.
const SAME_PLACE: f64 = 0.2;

/// Least number of observations at common times that tell whether two drives are one.
const LEAST_COMMON: usize = 20;

/// Why maps cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A map cannot be read, or the merged one not be written.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The settings of a map are of another version of magmap.
    #[error("{name}: {source}")]
    Settings {
        /// The map.
        name: String,
        /// The problem with the settings.
        source: config::Error,
    },
    /// Nothing was learnt.
    #[error("{0} has no map yet: nothing was learnt; leave it out")]
    Empty(String),
    /// A number of the trajectory, or of a transform, is not finite.
    #[error("the trajectories cannot be joined: a place in them is not finite; map the recordings again")]
    NotFinite,
    /// A map is of another quantity than the first.
    #[error(
        "{name} is a map of {}, but {first} is one of {}; map its recording again with --set model.field={}",
        in_words(*.field), in_words(*.expected), setting(*.expected)
    )]
    OtherField {
        /// The map.
        name: String,
        /// Quantity of the map.
        field: Mapped,
        /// The first map.
        first: String,
        /// Quantity of the first map.
        expected: Mapped,
    },
    /// Two maps were made from the same run.
    #[error("{name} and {other} share a run, {run}: no observation is used twice; leave one of the two out")]
    SharedRun {
        /// The one map.
        name: String,
        /// The other map.
        other: String,
        /// The recording, or the robot.
        run: String,
    },
    /// A map whose state cannot be used, or that cannot be drawn.
    #[error(transparent)]
    Field(#[from] magmap::field::Error),
    /// The picture cannot be written.
    #[error(transparent)]
    Export(#[from] crate::export::Error),
    /// Two maps are of one drive, of which the recording and the robot's own map, for example, have other runs.
    #[error(
        "{name} and {other} were at the same places at the same times: they are of one drive, and no observation is used twice; leave one of \
         the two out"
    )]
    SameDrive {
        /// The one map.
        name: String,
        /// The other map.
        other: String,
    },
    /// A map that cannot be used to locate a robot.
    #[error("nobody can be located in a map: {0}")]
    NothingKnown(#[from] NothingKnown),
    /// Maps of which it is not proven where they are in the others.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Unproven(Vec<Unproven>),
    /// The merge was stopped.
    #[error("interrupted: nothing was written")]
    Interrupted,
}

fn in_words(field: Mapped) -> &'static str {
    if field == Mapped::Vector { "the three axes" } else { "strengths" }
}

fn setting(field: Mapped) -> &'static str {
    if field == Mapped::Vector { "vector" } else { "strength" }
}

/// A map of which it is not proven where it is, and how far every attempt came.
#[derive(Clone, Debug)]
pub struct Unproven {
    /// The map.
    pub name: String,
    /// The attempts, at least one.
    pub attempts: Vec<Attempt>,
}

/// An attempt to prove where a map is in another one.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The other map.
    pub within: String,
    /// The evidence from both maps.
    pub evidence: Evidence,
    /// How far the refinement moved it, in metres, and what it found; none where both ways do not agree.
    pub refined: Option<(f64, Refined)>,
}

impl fmt::Display for Unproven {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} cannot be proven to be of the same place", self.name)?;
        self.attempts.iter().try_for_each(|attempt| write!(formatter, "\n  {attempt}"))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |way: &Way| 100.0 * way.tracking;
        let Evidence { there, back, apart } = &self.evidence;
        let [there, back] = [there, back].map(percent);
        write!(
            formatter,
            "in {}: tracked along {there:.0} % of its path, and that one in it along {back:.0} %",
            self.within
        )?;
        match (&self.refined, apart) {
            (Some((moved, refined)), _) => {
                let unexplained = 100.0 * refined.unexplained.unwrap_or(1.0);
                write!(
                    formatter,
                    "; the refinement moved it by {moved:.2} m and left {unexplained:.0} % of the field unexplained"
                )?;
                write!(formatter, ", at most {AGREEMENT} m and {:.0} % are allowed", 100.0 * UNEXPLAINED)
            }
            (None, Some(apart)) => {
                write!(formatter, "; both ways end {apart:.2} m apart, at most {AGREEMENT} m is allowed")
            }
            (None, None) => Ok(()),
        }
    }
}

/// A map that is merged.
#[derive(Debug)]
pub struct Input {
    /// Name of the map, as it was given.
    pub name: String,
    checkpoint: Checkpoint,
    settings: Config,
    trajectory: Trajectory,
    driven: Driven,
    /// Length of its path, in metres.
    pub metres: f64,
}

/// Progress of the merge, for those who wait.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// Two maps are being compared, in this number of steps.
    Comparing {
        /// The maps.
        maps: [&'a str; 2],
        /// Number of steps.
        steps: usize,
    },
    /// The merged map is being learnt, in this number of steps.
    Learning {
        /// Number of steps.
        steps: usize,
    },
    /// A step.
    Step,
}

/// How it is known where a map is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Known {
    /// The map is the first.
    First,
    /// Somebody said so.
    Given,
    /// The place was proven in the map with this index.
    Proven {
        /// Index of the other map.
        within: usize,
        /// The evidence from both maps.
        evidence: Evidence,
    },
}

/// Where a map is in the frame of the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joined {
    /// Index of the map.
    pub index: usize,
    /// How that is known.
    pub known: Known,
    /// Where it is, and how its sensor differs.
    pub refined: Refined,
}

/// A merged map.
#[derive(Debug)]
pub struct Merged {
    /// The maps that it was made from, in the order in which they are in it.
    pub joined: Vec<Joined>,
    /// The state of the map.
    pub checkpoint: Checkpoint,
    /// The map.
    pub map: FieldMap,
    /// The trajectory that it was made from.
    pub trajectory: Trajectory,
    /// Places of its observations, in metres.
    places: Vec<[f64; 2]>,
}

impl Input {
    /// Reads a map: its file, or the folder of a replay. Robots are located in it with these settings.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, or has no map yet.
    pub fn read(path: &Path, localization: &config::Localization) -> Result<Self, Error> {
        let name = path.display().to_string();
        let (checkpoint, batches) = map_file::read_whole(path)?;
        let settings = checkpoint.settings()?;
        let of_settings = |source| Error::Settings { name: name.clone(), source };
        let located = localization::settings_for(&settings).map_err(of_settings)?;
        let located = Config { localization: localization.clone(), ..located };
        let map = checkpoint.field_map(&settings)?.ok_or_else(|| Error::Empty(name.clone()))?;
        let mut trajectory = Trajectory::new(batches, checkpoint.stream.correction.clone());
        trajectory.delay = checkpoint.stream.delay;
        trajectory.withdrawals.clone_from(&checkpoint.stream.withdrawals);
        let observations: Vec<Observation> = trajectory.corrected_batches().flatten().collect();
        let metres = observations.windows(2).map(|pair| (pair[1].position - pair[0].position).norm()).sum();
        Ok(Self { name, checkpoint, settings, trajectory, driven: Driven::new(located, map, &observations), metres })
    }

    /// Quantity of the map.
    pub fn field(&self) -> Mapped {
        self.settings.model.field
    }

    /// Number of its observations.
    pub fn observations(&self) -> usize {
        self.trajectory.observations().count()
    }

    /// The runs that it was made from.
    fn runs(&self) -> &[SourceRun] {
        &self.checkpoint.stream.progress.sources
    }

    /// The runs from which it has learnt.
    fn runs_with_batches(&self) -> impl Iterator<Item = &SourceRun> {
        self.checkpoint.stream.progress.runs_with_batches(self.trajectory.batches().len() as u64)
    }
}

/// Checks that these are maps of the same quantity, and that no two of them share a run.
///
/// # Errors
/// [`Error::OtherField`] and [`Error::SharedRun`].
pub fn check(inputs: &[Input]) -> Result<(), Error> {
    for (index, input) in inputs.iter().enumerate() {
        let first = &inputs[0];
        if input.field() != first.field() {
            let (name, field) = (input.name.clone(), input.field());
            return Err(Error::OtherField { name, field, first: first.name.clone(), expected: first.field() });
        }
        for other in &inputs[..index] {
            // All runs of a recording are equal.
            let is_same = |one: &SourceRun, other: &SourceRun| {
                one.id == other.id && (one.run == other.run || one.id.is_recording())
            };
            let is_shared = |run: &&SourceRun| other.runs_with_batches().any(|of| is_same(of, run));
            if let Some(run) = input.runs_with_batches().find(is_shared) {
                let (name, other, run) = (input.name.clone(), other.name.clone(), run.id.name.clone());
                return Err(Error::SharedRun { name, other, run });
            }
        }
    }
    Ok(())
}

/// Merges maps, in the frame of the first; of each it may be `given` where it is. `watch` is called with what is being done.
///
/// # Errors
/// The errors of [`check`], [`Error::Unproven`] and [`Error::Interrupted`].
pub fn merge(
    inputs: &[Input],
    given: &[Option<Isometry2<f64>>],
    stop: &StopSignal,
    watch: &(dyn Fn(Work<'_>) + Sync),
) -> Result<Merged, Error> {
    check(inputs)?;
    let joined = join(inputs, given, stop, watch)?;
    let part = |joined: &Joined| (&inputs[joined.index].trajectory, joined.refined.transform, joined.refined.hard_iron);
    let mut trajectory = Trajectory::joined(joined.iter().map(part)).ok_or(Error::NotFinite)?;
    let observations = trajectory.corrected_observations();
    check_drives(inputs, &joined, &observations)?;
    watch(Work::Learning { steps: trajectory.batches().len() });
    // No drive continues a merged map, so there is no path to correct.
    let config = &Config { slam: config::Slam::default(), ..inputs[0].settings.clone() };
    let batches = trajectory.corrected_batches().inspect(|_| watch(Work::Step));
    let mut model = fold(config, batches, &|| stop.is_stopped());
    if stop.is_stopped() {
        return Err(Error::Interrupted);
    }
    if !trajectory.withdrawals.is_empty() {
        // They count what the maps were given.
        let totals = joined.iter().map(|joined| inputs[joined.index].checkpoint.model.totals);
        model.totals = totals.fold(Totals::default(), |sum, totals| sum.plus(&totals));
        trajectory.withdrawals.iter_mut().for_each(|withdrawal| withdrawal.is_applied = true);
    }
    let map = model.map().ok_or(Error::NotFinite)?;

    let mut progress = Progress::default();
    for joined in &joined {
        let input = &inputs[joined.index];
        let after = |run: &SourceRun| SourceRun { after_updates: run.after_updates + progress.steps, ..run.clone() };
        let runs: Vec<SourceRun> = input.runs().iter().map(after).collect();
        progress.sources.extend(runs);
        // As if every batch had been one step.
        progress.steps += input.trajectory.batches().len() as u64;
        progress.is_without_mount |= input.checkpoint.stream.progress.is_without_mount;
    }
    progress.has_ended = true;
    let mut path = path::Path::default();
    observations.iter().for_each(|seen| path.push(seen.position));
    let mut pipeline = Pipeline::new(config, Isometry3::identity());
    pipeline.restart(path, OdometryInMap::default());
    let checkpoint = Checkpoint {
        magmap_version: env!("CARGO_PKG_VERSION").to_owned(),
        config: config.to_toml().map_err(store::Error::from)?,
        frame: inputs[0].checkpoint.frame.clone(),
        model: model.state(),
        stream: Stream {
            progress,
            pipeline,
            continuation: None,
            correction: trajectory.correction.clone(),
            delay: trajectory.delay,
            withdrawals: trajectory.withdrawals.clone(),
        },
    };
    let places = observations.iter().map(|seen| seen.position.coords.xy().into()).collect();
    Ok(Merged { joined, checkpoint, map, trajectory, places })
}

impl Merged {
    /// Writes it into a file of its own, whole or not at all. What is at this path becomes an earlier map, whose path is returned.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<Option<PathBuf>, Error> {
        let earlier_maps = self.checkpoint.settings()?.node.earlier_maps;
        Ok(map_file::write(path, &self.checkpoint, self.trajectory.batches(), earlier_maps)?)
    }
}

/// Checks that no two maps are of one drive: two robots are never at one place at one time.
fn check_drives(inputs: &[Input], joined: &[Joined], mut observations: &[Observation]) -> Result<(), Error> {
    let mut drives: Vec<(&Input, Vec<&Observation>)> = Vec::new();
    for joined in joined {
        let input = &inputs[joined.index];
        let (own, rest) = observations.split_at(input.observations());
        let mut own: Vec<&Observation> = own.iter().collect();
        own.sort_by_key(|seen| seen.stamp);
        if let Some((other, _)) = drives.iter().find(|(_, drive)| is_same_drive(&own, drive)) {
            return Err(Error::SameDrive { name: input.name.clone(), other: other.name.clone() });
        }
        drives.push((input, own));
        observations = rest;
    }
    Ok(())
}

/// Whether two drives, in the order of their stamps, were at the same places for more than half of their common time.
fn is_same_drive(one: &[&Observation], other: &[&Observation]) -> bool {
    let (mut common, mut same) = (0, 0);
    for seen in one {
        let next = other.partition_point(|other| other.stamp < seen.stamp);
        let apart = |other: &&Observation| other.stamp.seconds_since(seen.stamp).abs();
        let beside = other[next.saturating_sub(1)..].iter().copied().take(2);
        let nearest = beside.min_by(|one, other| apart(one).total_cmp(&apart(other)));
        if let Some(nearest) = nearest.filter(|nearest| apart(nearest) < SAME_TIME) {
            common += 1;
            same += usize::from((nearest.position - seen.position).xy().norm() < SAME_PLACE);
        }
    }
    common >= LEAST_COMMON && 2 * same > common
}

/// Finds where each map is in the frame of the first.
fn join(
    inputs: &[Input],
    given: &[Option<Isometry2<f64>>],
    stop: &StopSignal,
    watch: &(dyn Fn(Work<'_>) + Sync),
) -> Result<Vec<Joined>, Error> {
    let (transform, hard_iron) = (Isometry2::identity(), Vector3::zeros());
    let first = Refined { transform, hard_iron, residual: None, unexplained: None, shared: 0 };
    let mut joined = vec![Joined { index: 0, known: Known::First, refined: first }];
    let mut waiting: Vec<(usize, Unproven)> = Vec::new();
    for (index, input) in inputs.iter().enumerate().skip(1) {
        if let Some(Some(transform)) = given.get(index) {
            let refined = refine(&others(inputs, &joined, index), &input.driven, *transform, Given::Transform)?;
            joined.push(Joined { index, known: Known::Given, refined });
        } else {
            waiting.push((index, Unproven { name: input.name.clone(), attempts: Vec::new() }));
        }
    }
    while !waiting.is_empty() {
        let mut rest = Vec::new();
        let before = waiting.len();
        for (index, mut unproven) in waiting {
            match prove(inputs, index, &joined, &mut unproven.attempts, stop, watch)? {
                Some(found) => joined.push(found),
                None => rest.push((index, unproven)),
            }
        }
        waiting = rest;
        if waiting.len() == before {
            return Err(Error::Unproven(waiting.into_iter().map(|(_, unproven)| unproven).collect()));
        }
    }
    settle(inputs, &mut joined)?;
    Ok(joined)
}

/// Finds where a map is, in those that are joined and in which that was not attempted yet.
fn prove(
    inputs: &[Input],
    index: usize,
    joined: &[Joined],
    attempts: &mut Vec<Attempt>,
    stop: &StopSignal,
    watch: &(dyn Fn(Work<'_>) + Sync),
) -> Result<Option<Joined>, Error> {
    let input = &inputs[index];
    for other in &joined[attempts.len()..] {
        let within = &inputs[other.index];
        let steps = input.driven.observations() + within.driven.observations();
        watch(Work::Comparing { maps: [&input.name, &within.name], steps });
        let step = || {
            watch(Work::Step);
            !stop.is_stopped()
        };
        let evidence = within.driven.evidence(&input.driven, step)?;
        if stop.is_stopped() {
            return Err(Error::Interrupted);
        }
        let mut refined = None;
        if let Some(proven) = evidence.proven() {
            let start = other.refined.transform * proven;
            let found = refine(&others(inputs, joined, index), &input.driven, start, Given::Nothing)?;
            let moved = input.driven.places().between(&start, &found.transform);
            if moved <= AGREEMENT && found.unexplained.is_some_and(|unexplained| unexplained <= UNEXPLAINED) {
                let known = Known::Proven { within: other.index, evidence };
                return Ok(Some(Joined { index, known, refined: found }));
            }
            refined = Some((moved, found));
        }
        attempts.push(Attempt { within: within.name.clone(), evidence, refined });
    }
    Ok(None)
}

/// Refines each map against all others, until none moves: so far each was refined against those before it.
fn settle(inputs: &[Input], joined: &mut [Joined]) -> Result<(), Error> {
    for _ in 0..MOST_ROUNDS {
        let mut farthest: f64 = 0.0;
        for at in 1..joined.len() {
            let Joined { index, known, refined: Refined { transform, .. } } = joined[at];
            if known == Known::Given {
                continue;
            }
            let driven = &inputs[index].driven;
            let refined = refine(&others(inputs, joined, index), driven, transform, Given::Nothing)?;
            farthest = farthest.max(driven.places().between(&transform, &refined.transform));
            joined[at].refined = refined;
        }
        if farthest < SETTLED {
            break;
        }
    }
    Ok(())
}

/// The maps that are joined, but for one.
fn others<'a>(inputs: &'a [Input], joined: &[Joined], than: usize) -> Vec<Placed<'a>> {
    let placed = |Joined { index, refined: Refined { transform, hard_iron, .. }, .. }: &Joined| Placed {
        driven: &inputs[*index].driven,
        transform: *transform,
        hard_iron: *hard_iron,
    };
    joined.iter().filter(|joined| joined.index != than).map(placed).collect()
}
