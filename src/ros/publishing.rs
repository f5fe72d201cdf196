//! The publishing thread: turns the newest snapshot into messages for subscribers.

use std::cell::OnceCell;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use r2r::std_msgs::msg::Header;
use r2r::{Node, Publisher, WrappedTypesupport};
use r2r::{nav_msgs, sensor_msgs, visualization_msgs};

use super::conversions as convert;
#[cfg(not(feature = "ros-check"))]
use super::interfaces::FieldMapMessage;
use super::interfaces::OccupancyGridUpdate;
use super::listener::{publisher, subscribers};
use super::shared::Shared;
use super::spawn;
use crate::config::{self, Config, Mapped};
use crate::display::AxesGrid;
use crate::display::arrows::Arrows;
use crate::display::occupancy::{GridScales, OccupancyLayers};
use crate::field::grid::{Cells, StrengthGrid};
use crate::field::map::FieldMap;
use crate::field::raster::Rasterizer;
use crate::mapping::mapper::Mapper;
use crate::mapping::path::Path;
use crate::mapping::updates::Update;
use crate::session::Answer;
use crate::sync::lock;

/// How often the thread checks for updates and new subscribers.
const PERIOD: Duration = Duration::from_millis(50);

enum Request {
    /// Publish the newest map at once, and reply when that is done.
    Now(Sender<()>),
    Configure(Box<Config>),
}

/// Sends requests to the publishing thread, which ends when this and its clones are dropped.
#[derive(Clone)]
pub(super) struct PublishingHandle {
    requests: Sender<Request>,
}

impl PublishingHandle {
    /// Creates the publishers and starts the thread.
    pub(super) fn start(node: &mut Node, config: &Config, shared: Shared) -> anyhow::Result<(Self, JoinHandle<()>)> {
        let (requests, receiver) = unbounded();
        // Neither setting changes while the node runs.
        let has_axes = config.model.field != Mapped::Strength;
        let learns_hard_iron = has_axes && config.vector.hard_iron > 0.0;
        let thread = PublishingThread {
            raster: LazyRaster::new(config, Arc::clone(&shared.scales)),
            shared,
            settings: config.node.clone(),
            maps_published: None,
            markers_published: None,
            mean: LayerPublisher::create(node, "~/mean", |layers| &layers.mean)?,
            variance: LayerPublisher::create(node, "~/variance", |layers| &layers.variance)?,
            cloud: MapPublisher::create(node, "~/cloud")?,
            #[cfg(not(feature = "ros-check"))]
            field: MapPublisher::create(node, "~/field")?,
            vectors: has_axes.then(|| MapPublisher::create(node, "~/vectors")).transpose()?,
            inducing_points: MapPublisher::create(node, "~/inducing_points")?,
            changes: config.finds_changes().then(|| MapPublisher::create(node, "~/changes")).transpose()?,
            path: MapPublisher::create(node, "~/path")?,
            odometry_path: config.corrects_path().then(|| MapPublisher::create(node, "~/odometry_path")).transpose()?,
            bias: learns_hard_iron.then(|| MapPublisher::create(node, "~/bias")).transpose()?,
        };
        Ok((Self { requests }, spawn("publishing", move || thread.run(&receiver))?))
    }

    /// After a success, publishes the newest map to subscribers, whatever the rates, and waits until that is done.
    pub(super) fn publish_result(&self, answer: Answer) -> Answer {
        let (reply, done) = bounded(1);
        // A thread that has ended publishes nothing more.
        if answer.is_ok() && self.requests.send(Request::Now(reply)).is_ok() {
            let _ = done.recv();
        }
        answer
    }

    /// Continues with other settings.
    pub(super) fn configure(&self, config: &Config) {
        let _ = self.requests.send(Request::Configure(Box::new(config.clone())));
    }
}

/// A publisher, and what its subscribers have received.
struct MapPublisher<M: WrappedTypesupport> {
    publisher: Publisher<M>,
    subscribers: usize,
    /// The last update published.
    published: Option<u64>,
}

impl<M: WrappedTypesupport + 'static> MapPublisher<M> {
    fn create(node: &mut Node, name: &str) -> anyhow::Result<Self> {
        Ok(Self { publisher: publisher(node, name, true)?, subscribers: 0, published: None })
    }

    /// Publishes an update to subscribers, where one has just joined, or it is due and they have not received it. Returns whether
    /// there was a message.
    fn offer(&mut self, update: u64, is_due: bool, message: impl FnOnce() -> Option<M>) -> bool {
        let subscribers = subscribers(&self.publisher);
        let has_joined = subscribers > std::mem::replace(&mut self.subscribers, subscribers);
        let is_wanted = subscribers > 0 && (has_joined || (is_due && self.published != Some(update)));
        let Some(message) = is_wanted.then(message).flatten() else { return false };
        self.published = Some(update);
        if let Err(error) = self.publisher.publish(&message) {
            log::warn!("a map could not be published: {error}");
        }
        true
    }
}

fn is_due(last: Option<Instant>, rate: f64) -> bool {
    last.is_none_or(|last| last.elapsed().as_secs_f64() >= 1.0 / rate)
}

/// Time after which a map is published whole again.
const WHOLE_PERIOD: Duration = Duration::from_secs(30);

/// A layer of the raster, and of a large one the cells that changed.
struct LayerPublisher {
    values: fn(&OccupancyLayers) -> &[i8],
    whole: MapPublisher<nav_msgs::msg::OccupancyGrid>,
    changes: MapPublisher<OccupancyGridUpdate>,
}

impl LayerPublisher {
    fn create(node: &mut Node, name: &str, values: fn(&OccupancyLayers) -> &[i8]) -> anyhow::Result<Self> {
        Ok(Self {
            values,
            whole: MapPublisher::create(node, name)?,
            changes: MapPublisher::create(node, &format!("{name}_updates"))?,
        })
    }

    /// Publishes the layer as [`MapPublisher::offer`] does.
    fn offer(&mut self, update: &Update, is_due: bool, raster: &mut LazyRaster, header: impl Fn() -> Header) -> bool {
        let is_due = is_due && subscribers(&self.whole.publisher) + subscribers(&self.changes.publisher) > 0;
        let is_whole_due = is_due && raster.of(update).is_some_and(|raster| raster.unsent.is_whole_due);
        let has_published = self.whole.offer(update.number, is_whole_due, || {
            let layers = raster.of(update)?.layers;
            Some(convert::occupancy_grid(header(), &layers.geometry, (self.values)(layers)))
        });
        has_published
            || self.changes.offer(update.number, is_due, || {
                let Raster { layers, unsent, .. } = raster.of(update)?;
                let cells = unsent.cells?;
                Some(convert::occupancy_grid_update(header(), &layers.geometry, (self.values)(layers), &cells))
            })
    }
}

/// Draws an update when it is first needed, and only once.
struct LazyRaster {
    settings: config::Raster,
    /// The setting [`config::Node::whole_map_cells`].
    whole_map_cells: usize,
    scales: Arc<Mutex<Option<GridScales>>>,
    /// Draws only what has changed.
    rasterizer: Rasterizer,
    /// Extent of the map that was drawn last.
    extent: Option<[[f64; 2]; 2]>,
    /// The last update that it tried to draw, and whether it could.
    drawn: Option<(u64, bool)>,
    layers: Option<OccupancyLayers>,
    /// Computed when first needed; none where the map has no axes.
    axes: OnceCell<Option<AxesGrid>>,
    unsent: Unsent,
}

/// The part of the layers that has not been sent yet.
struct Unsent {
    /// Cells that changed since they were sent.
    cells: Option<Cells>,
    /// Whether they cannot be sent without the others, or need not.
    is_whole_due: bool,
    /// When the whole was sent.
    whole_sent: Option<Instant>,
}

impl Unsent {
    /// Adds cells that changed; `alone` where all others are as they were.
    fn add(&mut self, cells: Option<Cells>, alone: bool) {
        self.cells = self.cells.into_iter().chain(cells).reduce(|all, cells| all.hull(&cells));
        self.is_whole_due |= !alone || self.whole_sent.is_none_or(|sent| sent.elapsed() >= WHOLE_PERIOD);
    }

    /// Marks the due part as sent.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_whole_due) {
            self.whole_sent = Some(Instant::now());
        }
        self.cells = None;
    }
}

/// The raster of an update.
#[derive(Clone, Copy)]
struct Raster<'a> {
    grid: &'a StrengthGrid,
    layers: &'a OccupancyLayers,
    axes: &'a OnceCell<Option<AxesGrid>>,
    unsent: &'a Unsent,
}

impl<'a> Raster<'a> {
    fn axes(&self, update: &Update) -> Option<&'a AxesGrid> {
        self.axes.get_or_init(|| AxesGrid::of(update.map.as_ref()?, self.grid)).as_ref()
    }

    /// The arrows; without any where a map was reset.
    fn arrows(&self, update: &Update) -> Arrows {
        update.map.as_ref().and_then(|map| Arrows::of(map, self.grid)).unwrap_or_default()
    }
}

impl LazyRaster {
    fn new(config: &Config, scales: Arc<Mutex<Option<GridScales>>>) -> Self {
        Self {
            settings: config.raster.clone(),
            whole_map_cells: config.node.whole_map_cells,
            scales,
            rasterizer: Rasterizer::new(&config.raster),
            extent: None,
            drawn: None,
            layers: None,
            axes: OnceCell::new(),
            unsent: Unsent { cells: None, is_whole_due: true, whole_sent: None },
        }
    }

    fn of(&mut self, update: &Update) -> Option<Raster<'_>> {
        if self.drawn.is_none_or(|(number, _)| number != update.number) {
            let drawn = self.draw(update.map.as_ref());
            if let Err(error) = &drawn {
                log::warn!("the map after update {} cannot be drawn: {error}", update.number + 1);
            }
            self.drawn = Some((update.number, drawn.is_ok()));
        }
        let Self { rasterizer, layers, axes, unsent, .. } = self;
        let (_, is_drawn) = self.drawn?;
        let (grid, layers) = rasterizer.grid().zip(layers.as_ref()).filter(|_| is_drawn)?;
        Some(Raster { grid, layers, axes, unsent })
    }

    /// Draws a map; without one, everything is unknown.
    fn draw(&mut self, map: Option<&FieldMap>) -> Result<(), crate::field::Error> {
        if let Some(map) = map {
            let extent = map.extent;
            if self.extent.replace(extent).is_some_and(|last| !contains(extent, last)) {
                // Another map, of other places.
                self.rasterizer = Rasterizer::new(&self.settings);
            }
            self.rasterizer.rasterize(map, &extent)?;
        } else {
            self.rasterizer.clear();
        }
        let Some(grid) = self.rasterizer.grid() else { return Ok(()) };
        let prior = map.map_or(1.0, FieldMap::prior_standard_deviation);
        let changed = self.rasterizer.changed();
        if grid.geometry.len() <= self.whole_map_cells {
            // It is published whole, with scales that suit it.
            self.layers = None;
        }
        let is_changed_alone = self.layers.as_mut().is_some_and(|layers| layers.update(grid, prior, changed));
        let layers = self.layers.get_or_insert_with(|| OccupancyLayers::of(grid, prior));
        *lock(&self.scales) = Some(layers.scales);
        self.axes = OnceCell::new();
        self.unsent.add(changed, is_changed_alone);
        Ok(())
    }
}

/// Whether an area (lower left and upper right corner, in metres) contains another one.
fn contains([low, high]: [[f64; 2]; 2], [other_low, other_high]: [[f64; 2]; 2]) -> bool {
    (0..2).all(|axis| low[axis] <= other_low[axis] && other_high[axis] <= high[axis])
}

struct PublishingThread {
    shared: Shared,
    raster: LazyRaster,
    settings: config::Node,
    maps_published: Option<Instant>,
    markers_published: Option<Instant>,
    mean: LayerPublisher,
    variance: LayerPublisher,
    cloud: MapPublisher<sensor_msgs::msg::PointCloud2>,
    #[cfg(not(feature = "ros-check"))]
    field: MapPublisher<FieldMapMessage>,
    /// The arrows, where the map has axes.
    vectors: Option<MapPublisher<visualization_msgs::msg::MarkerArray>>,
    inducing_points: MapPublisher<visualization_msgs::msg::MarkerArray>,
    /// Where the building has changed, where that is looked for.
    changes: Option<MapPublisher<visualization_msgs::msg::MarkerArray>>,
    path: MapPublisher<nav_msgs::msg::Path>,
    /// The path by odometry, where it is corrected.
    odometry_path: Option<MapPublisher<nav_msgs::msg::Path>>,
    /// The bias of the sensor, where it is learnt.
    bias: Option<MapPublisher<sensor_msgs::msg::MagneticField>>,
}

impl PublishingThread {
    fn run(mut self, requests: &Receiver<Request>) {
        loop {
            match requests.recv_timeout(PERIOD) {
                Ok(Request::Now(reply)) => {
                    self.publish(true);
                    let _ = reply.send(());
                }
                Ok(Request::Configure(config)) => self.configure(&config),
                Err(RecvTimeoutError::Timeout) => self.publish(false),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn configure(&mut self, config: &Config) {
        self.settings = config.node.clone();
        self.raster.whole_map_cells = config.node.whole_map_cells;
        if self.raster.settings != config.raster {
            self.raster = LazyRaster::new(config, Arc::clone(&self.shared.scales));
            (self.mean.whole.published, self.variance.whole.published, self.cloud.published) = (None, None, None);
            self.vectors.iter_mut().for_each(|vectors| vectors.published = None);
            #[cfg(not(feature = "ros-check"))]
            (self.field.published = None);
        }
    }

    fn publish(&mut self, at_once: bool) {
        let Some(update) = self.shared.session.mapping.updates.newest().filter(|update| !update.frame.is_empty())
        else {
            return;
        };
        let config::Node { map_rate, marker_rate, .. } = self.settings;
        self.publish_maps(&update, at_once || is_due(self.maps_published, map_rate));
        self.publish_markers(&update, at_once || is_due(self.markers_published, marker_rate));
        self.publish_bias(&update);
    }

    /// Publishes the bias of the sensor after every update, once the frame of the sensor is known.
    fn publish_bias(&mut self, update: &Update) {
        let frame = lock(&self.shared.sensor_frame).clone();
        let Some(bias) = self.bias.as_mut().filter(|_| !frame.is_empty()) else { return };
        bias.offer(update.number, true, || {
            Some(convert::bias(header(update, &frame), &update.map.as_ref()?.sensor_bias()?))
        });
    }

    fn publish_maps(&mut self, update: &Update, is_due: bool) {
        let (raster, number) = (&mut self.raster, update.number);
        let header = || header(update, &update.frame);
        let mut has_published = self.mean.offer(update, is_due, raster, header);
        has_published |= self.variance.offer(update, is_due, raster, header);
        if has_published && is_due {
            raster.unsent.clear();
        }
        has_published |= self.cloud.offer(number, is_due, || {
            let raster = raster.of(update)?;
            Some(convert::cloud(header(), raster.grid, raster.axes(update)))
        });
        if let Some(vectors) = &mut self.vectors {
            has_published |= vectors.offer(number, is_due, || {
                let raster = raster.of(update)?;
                Some(convert::vectors(&header(), &raster.arrows(update), &raster.layers.scales))
            });
        }
        #[cfg(not(feature = "ros-check"))]
        {
            has_published |= self.field.offer(number, is_due, || {
                let raster = raster.of(update)?;
                let status = self.shared.session.mapping.status();
                let rejections = update.counters.rejections.plus(&lock(&self.shared.intake_rejections));
                Some(convert::field_map(
                    header(),
                    update,
                    &status,
                    &rejections,
                    raster.grid,
                    raster.axes(update),
                    &raster.layers.scales,
                ))
            });
        }
        if has_published {
            self.maps_published = Some(Instant::now());
        }
    }

    fn publish_markers(&mut self, update: &Update, is_due: bool) {
        let header = || header(update, &update.frame);
        let mut has_published = self.inducing_points.offer(update.number, is_due, || {
            let points = update.map.as_ref().map(FieldMap::inducing_points).unwrap_or_default();
            Some(convert::markers(header(), &points))
        });
        if let Some(changes) = &mut self.changes {
            let withdrawals = || self.shared.session.mapping.withdrawals();
            has_published |= changes.offer(update.number, is_due, || Some(convert::changes(&header(), &withdrawals())));
        }
        // A mapping thread that has ended reports why itself.
        let session = &self.shared.session;
        let path = |which: fn(&Mapper) -> Path| {
            move || Some(convert::path(header(), session.mapping.inspect(which).ok()?.points()))
        };
        has_published |= self.path.offer(update.number, is_due, path(Mapper::path));
        if let Some(odometry_path) = &mut self.odometry_path {
            let by_odometry = |mapper: &Mapper| mapper.pipeline().path().clone();
            has_published |= odometry_path.offer(update.number, is_due, path(by_odometry));
        }
        if has_published {
            self.markers_published = Some(Instant::now());
        }
    }
}

fn header(update: &Update, frame: &str) -> Header {
    convert::header(frame, update.map.as_ref().map(|map| map.stamp).unwrap_or_default())
}
