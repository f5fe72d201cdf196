//! The publishing thread: turns the newest snapshot into messages for those who watch.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use r2r::{Node, Publisher, QosProfile, WrappedTypesupport};

use super::conversions as convert;
#[cfg(not(feature = "ros-check"))]
use super::interfaces::FieldMap;
use super::{Context, Error};
use crate::config::{self, Config};
use crate::export::occupancy::{GridScales, OccupancyLayers};
use crate::mapping::field_learner::FieldSnapshot;
use crate::mapping::field_model::{inducing_points, prior_standard_deviation};
use crate::mapping::field_raster::rasterize;
use crate::mapping::grid::{FieldGrid, Rasterizer};
use crate::mapping::refusal::Refusals;
use crate::mapping::session::Session;
use crate::mapping::worker::{Update, lock};
use r2r::{nav_msgs, sensor_msgs, visualization_msgs};

/// How often it looks for what is new and for who has come.
const LOOK: Duration = Duration::from_millis(50);

/// What the publishing thread shows and shares with others.
#[derive(Clone)]
pub(super) struct Shown {
    /// The run, with the mapping thread.
    pub(super) session: Arc<Session>,
    /// What the last grids' occupancies mean.
    pub(super) scales: Arc<Mutex<Option<GridScales>>>,
    /// What was refused before it reached the mapping thread.
    pub(super) unplaced: Arc<Mutex<Refusals>>,
}

enum Request {
    /// Publish the newest map at once, and say when that is done.
    Now(Sender<()>),
    /// Go on with these settings.
    Settings(Box<Config>),
}

/// The publishing thread, seen from outside. It ends when this and its clones are dropped.
#[derive(Clone)]
pub(super) struct Publishing {
    requests: Sender<Request>,
}

impl Publishing {
    /// Makes the publishers and starts the thread.
    pub(super) fn start(node: &mut Node, config: &Config, shown: Shown) -> Result<(Self, JoinHandle<()>), Error> {
        let (requests, receiver) = unbounded();
        let press = Press {
            topics: Topics::create(node)?,
            shown,
            settings: config.raster.clone(),
            raster: None,
            undrawable: None,
            maps: Pace::new(config.node.map_rate),
            markers: Pace::new(config.node.marker_rate),
        };
        let builder = std::thread::Builder::new().name("publishing".into());
        let thread = builder
            .spawn(move || press.run(&receiver))
            .map_err(|source| Error::System { what: "the publishing thread could not be started", source })?;
        Ok((Self { requests }, thread))
    }

    /// Publishes the newest map to those who watch, whatever the rates, and waits until that is done.
    pub(super) fn publish_now(&self) {
        let (reply, done) = bounded(1);
        // A thread that has ended publishes nothing more.
        if self.requests.send(Request::Now(reply)).is_ok() {
            let _ = done.recv();
        }
    }

    /// Goes on with other settings.
    pub(super) fn change(&self, config: &Config) {
        let _ = self.requests.send(Request::Settings(Box::new(config.clone())));
    }
}

/// One topic and what its subscribers have seen.
struct Topic<M: WrappedTypesupport> {
    publisher: Publisher<M>,
    subscribers: usize,
    /// The last update published.
    published: Option<u64>,
}

impl<M: WrappedTypesupport + 'static> Topic<M> {
    fn create(node: &mut Node, name: &str) -> Result<Self, Error> {
        let quality = QosProfile::default().keep_last(1).reliable().transient_local();
        let publisher = node.create_publisher(name, quality).context(|| format!("cannot publish {name}"))?;
        Ok(Self { publisher, subscribers: 0, published: None })
    }

    /// Whether the update is wanted: someone watches who has not seen it, and it is time for it or someone has just come.
    fn wants(&mut self, update: u64, is_due: bool) -> bool {
        let subscribers = self.publisher.get_inter_process_subscription_count().unwrap_or(0);
        let has_come = subscribers > std::mem::replace(&mut self.subscribers, subscribers);
        subscribers > 0 && (has_come || (is_due && self.published != Some(update)))
    }

    fn publish(&mut self, update: u64, message: &M) {
        self.published = Some(update);
        if let Err(error) = self.publisher.publish(message) {
            log::warn!("a map could not be published: {error}");
        }
    }
}

struct Topics {
    mean: Topic<nav_msgs::msg::OccupancyGrid>,
    variance: Topic<nav_msgs::msg::OccupancyGrid>,
    cloud: Topic<sensor_msgs::msg::PointCloud2>,
    #[cfg(not(feature = "ros-check"))]
    field: Topic<FieldMap>,
    inducing_points: Topic<visualization_msgs::msg::MarkerArray>,
    path: Topic<nav_msgs::msg::Path>,
}

impl Topics {
    fn create(node: &mut Node) -> Result<Self, Error> {
        Ok(Self {
            mean: Topic::create(node, "~/mean")?,
            variance: Topic::create(node, "~/variance")?,
            cloud: Topic::create(node, "~/cloud")?,
            #[cfg(not(feature = "ros-check"))]
            field: Topic::create(node, "~/field")?,
            inducing_points: Topic::create(node, "~/inducing_points")?,
            path: Topic::create(node, "~/path")?,
        })
    }
}

/// At most so many times a second.
struct Pace {
    period: Duration,
    last: Option<Instant>,
}

impl Pace {
    fn new(rate: f64) -> Self {
        Self { period: Duration::from_secs_f64(1.0 / rate), last: None }
    }

    /// Whether it is time again.
    fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= self.period)
    }

    fn took_place(&mut self) {
        self.last = Some(Instant::now());
    }
}

/// The raster of an update.
struct Raster {
    update: u64,
    grid: FieldGrid,
    layers: OccupancyLayers,
}

/// What runs on the thread.
struct Press {
    topics: Topics,
    shown: Shown,
    settings: config::Raster,
    raster: Option<Raster>,
    /// The last update that could not be drawn.
    undrawable: Option<u64>,
    maps: Pace,
    markers: Pace,
}

impl Press {
    fn run(mut self, requests: &Receiver<Request>) {
        loop {
            match requests.recv_timeout(LOOK) {
                Ok(Request::Now(reply)) => {
                    self.publish(true);
                    let _ = reply.send(());
                }
                Ok(Request::Settings(config)) => self.change(&config),
                Err(RecvTimeoutError::Timeout) => self.publish(false),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn change(&mut self, config: &Config) {
        self.maps.period = Pace::new(config.node.map_rate).period;
        self.markers.period = Pace::new(config.node.marker_rate).period;
        if self.settings != config.raster {
            self.settings = config.raster.clone();
            (self.raster, self.undrawable) = (None, None);
            self.forget_published();
        }
    }

    /// Everyone is to see the map again.
    fn forget_published(&mut self) {
        let Topics { mean, variance, cloud, .. } = &mut self.topics;
        (mean.published, variance.published, cloud.published) = (None, None, None);
        #[cfg(not(feature = "ros-check"))]
        (self.topics.field.published = None);
    }

    fn publish(&mut self, at_once: bool) {
        let session = &self.shown.session;
        let (Some(update), Some(frame)) = (session.worker().snapshots().newest(), session.frame().get().cloned())
        else {
            return;
        };
        self.publish_maps(&update, &frame, at_once);
        self.publish_markers(&update, &frame, at_once);
    }

    fn publish_maps(&mut self, update: &Update<FieldSnapshot>, frame: &str, at_once: bool) {
        let (number, is_due) = (update.number, at_once || self.maps.is_due());
        let topics = &mut self.topics;
        let wants = [
            topics.mean.wants(number, is_due),
            topics.variance.wants(number, is_due),
            topics.cloud.wants(number, is_due),
            #[cfg(not(feature = "ros-check"))]
            topics.field.wants(number, is_due),
        ];
        if !wants.contains(&true) || !self.draw(update) {
            return;
        }
        self.maps.took_place();
        let Some(Raster { grid, layers, .. }) = &self.raster else { return };
        let header = || convert::header(frame, update.snapshot.stamp.unwrap_or_default());
        let topics = &mut self.topics;
        if wants[0] {
            topics.mean.publish(number, &convert::occupancy_grid(header(), &grid.geometry, &layers.mean));
        }
        if wants[1] {
            topics.variance.publish(number, &convert::occupancy_grid(header(), &grid.geometry, &layers.variance));
        }
        if wants[2] {
            topics.cloud.publish(number, &convert::cloud(header(), grid));
        }
        #[cfg(not(feature = "ros-check"))]
        if wants[3] {
            let status = self.shown.session.worker().status();
            let refusals = update.counters.refusals.plus(&lock(&self.shown.unplaced));
            let message = convert::field_map(header(), update, &status, &refusals, grid, &layers.scales);
            topics.field.publish(number, &message);
        }
    }

    /// Draws the raster of an update unless it is there; says whether there is one.
    fn draw(&mut self, update: &Update<FieldSnapshot>) -> bool {
        if self.raster.as_ref().is_some_and(|raster| raster.update == update.number) {
            return true;
        }
        if self.undrawable == Some(update.number) {
            return false;
        }
        match self.drawn(update) {
            Ok(Some((grid, layers))) => {
                *lock(&self.shown.scales) = Some(layers.scales);
                self.raster = Some(Raster { update: update.number, grid, layers });
                true
            }
            Ok(None) => false,
            Err(error) => {
                log::warn!("the map after update {} cannot be drawn: {error}", update.number + 1);
                self.undrawable = Some(update.number);
                false
            }
        }
    }

    fn drawn(
        &mut self,
        update: &Update<FieldSnapshot>,
    ) -> Result<Option<(FieldGrid, OccupancyLayers)>, crate::mapping::Error> {
        let FieldSnapshot { posterior, extent, .. } = &update.snapshot;
        let (Some(posterior), Some(extent)) = (posterior, extent) else { return Ok(self.emptied()) };
        let mut rasterizer = Rasterizer::new(&self.settings);
        let grid = rasterize(&mut rasterizer, update.number, posterior, extent)?.clone();
        let layers = OccupancyLayers::of(&grid, prior_standard_deviation(posterior))?;
        Ok(Some((grid, layers)))
    }

    /// A map that was reset: nothing is known where something was.
    fn emptied(&self) -> Option<(FieldGrid, OccupancyLayers)> {
        let FieldGrid { geometry, quantity, .. } = self.raster.as_ref()?.grid;
        let grid = FieldGrid::unknown(geometry, quantity);
        let layers = OccupancyLayers::of(&grid, 1.0).ok()?;
        Some((grid, layers))
    }

    fn publish_markers(&mut self, update: &Update<FieldSnapshot>, frame: &str, at_once: bool) {
        let (number, is_due) = (update.number, at_once || self.markers.is_due());
        let header = || convert::header(frame, update.snapshot.stamp.unwrap_or_default());
        let mut has_published = false;
        if self.topics.inducing_points.wants(number, is_due) {
            let points = update.snapshot.posterior.as_deref().map(inducing_points).unwrap_or_default();
            self.topics.inducing_points.publish(number, &convert::markers(header(), &points));
            has_published = true;
        }
        if self.topics.path.wants(number, is_due) {
            let path = self.shown.session.path();
            self.topics.path.publish(number, &convert::path(header(), path.points()));
            has_published = true;
        }
        if has_published {
            self.markers.took_place();
        }
    }
}
