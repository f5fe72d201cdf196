//! The ROS thread: spins the node, forwards what comes, and looks after everything else.

use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use futures::{FutureExt, Stream, StreamExt};
use r2r::{Node, QosProfile, ServiceRequest, WrappedServiceTypeSupport, WrappedTypesupport};
use r2r::{nav_msgs::msg::Odometry, sensor_msgs::msg::MagneticField, tf2_msgs::msg::TFMessage};

use super::conversions as convert;
use super::diagnostics::{Diagnostics, Facts};
#[cfg(not(feature = "ros-check"))]
use super::interfaces::QueryField;
use super::interfaces::Trigger;
use super::parameters::Parameters;
use super::publishing::{Publishing, Shown};
use super::services::{Desk, Plain, Task};
use super::{Context, Error, logging, names};
use crate::config::{self, Config, PoseSource, Reliability};
use crate::mapping::complaint::{Complaints, Topic};
use crate::mapping::field_learner::FieldSnapshot;
use crate::mapping::field_model::FieldModel;
use crate::mapping::frames::normalized;
use crate::mapping::intake::{Arrival, Intake};
use crate::mapping::path::Path;
use crate::mapping::pipeline::Pipeline;
use crate::mapping::reading::Stamp;
use crate::mapping::worker::{Inbox, Mode, Observer, StopSignal, Worker, lock};

/// The node's name unless it is remapped.
const NAME: &str = "magmap";

/// How long the ROS thread waits for messages before it looks after the rest.
const SPIN: Duration = Duration::from_millis(20);

/// Transforms the middleware keeps for each subscription.
const TRANSFORMS: usize = 1000;

type Messages<T> = Box<dyn Stream<Item = T> + Unpin>;

/// Runs the node until it is asked to end by SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot start, and when the mapping thread fails.
pub fn run() -> Result<(), Error> {
    let context = r2r::Context::create().context(|| "ROS cannot be initialised".into())?;
    let mut node = Node::create(context, NAME, "").context(|| format!("node {NAME} cannot be created"))?;
    logging::install(node.logger());
    let parameters = Parameters::from_given(&lock(&node.params))?;
    let config = parameters.config().clone();
    let running = Running::start(&mut node, &config)?;
    let ended = Spinner::start(&mut node, parameters, running.hands(), &config)?.run(&mut node);
    running.end()?;
    ended
}

/// The threads beside the ROS thread.
struct Running {
    desk: Desk,
    tasks: Sender<Task>,
    threads: [JoinHandle<()>; 2],
    stop: StopSignal,
}

/// What the ROS thread holds of the others.
struct Hands {
    desk: Desk,
    tasks: Sender<Task>,
    inbox: Inbox,
    stop: StopSignal,
}

impl Running {
    fn start(node: &mut Node, config: &Config) -> Result<Self, Error> {
        let path = Arc::new(Mutex::new(Path::default()));
        let observer: Observer<FieldSnapshot> = Box::new({
            let path = Arc::clone(&path);
            move |batch, _| {
                let mut path = lock(&path);
                batch.observations.iter().for_each(|observation| path.push(observation.position));
            }
        });
        let pipeline = Pipeline::new(config, Default::default());
        let worker = Worker::spawn(&config.worker, Mode::Live, pipeline, FieldModel::new(config), Some(observer))?;
        let stop = worker.stop_signal();
        end_on_signals(stop.clone())?;
        let frame = OnceLock::new();
        if !config.frames.map.is_empty() {
            frame.get_or_init(|| Arc::from(normalized(&config.frames.map)));
        }
        let shown = Shown {
            worker: Arc::new(worker),
            frame: Arc::new(frame),
            path,
            scales: Arc::default(),
            unplaced: Arc::default(),
        };
        let (publishing, publisher) = Publishing::start(node, config, shown.clone())?;
        let desk = Desk { shown, publishing, config: Arc::new(Mutex::new(config.clone())) };
        if config.node.load_at_start {
            match desk.load() {
                Ok(done) => log::info!("{done}"),
                Err(reason) => return Err(Error::Load { reason }),
            }
        }
        let (tasks, clerk) = desk.clone().open()?;
        Ok(Self { desk, tasks, threads: [publisher, clerk], stop })
    }

    fn hands(&self) -> Hands {
        let inbox = self.desk.shown.worker.inbox();
        Hands { desk: self.desk.clone(), tasks: self.tasks.clone(), inbox, stop: self.stop.clone() }
    }

    /// Closes the open batch, saves if that is wanted, and joins the threads.
    fn end(self) -> Result<(), Error> {
        let Self { desk, tasks, threads, stop } = self;
        stop.stop();
        let flushed = desk.flush();
        let has_map = desk.shown.worker.snapshots().newest().is_some_and(|update| update.snapshot.posterior.is_some());
        let is_to_be_saved = lock(&desk.config).node.save_at_end && has_map;
        let last = flushed.and_then(|done| if is_to_be_saved { desk.save() } else { Ok(done) });
        if let Ok(done) = &last {
            log::info!("{done}");
        }
        let worker = Arc::clone(&desk.shown.worker);
        drop((desk, tasks));
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread panicked");
            }
        }
        if let Some(worker) = Arc::into_inner(worker) {
            let status = worker.join()?.status;
            let counters = status.counters;
            log::info!(
                "mapped {} of {} readings over {:.1} m in {} updates",
                counters.used_readings,
                counters.readings + status.lost_readings,
                counters.travelled,
                status.updates
            );
        }
        last.map(|_| ()).map_err(|reason| Error::Save { reason })
    }
}

/// A signal ends the node in good order. Further ones change nothing: `ros2 launch` sends SIGTERM to a node that takes long.
fn end_on_signals(stop: StopSignal) -> Result<(), Error> {
    ctrlc::set_handler(move || stop.stop())
        .map_err(|error| Error::System { what: "signals cannot be handled", source: std::io::Error::other(error) })
}

/// Everything the ROS thread looks after.
struct Spinner {
    topics: Subscriptions,
    services: Services,
    pool: LocalPool,
    parameters: Arc<Mutex<Parameters>>,
    hands: Hands,
    intake: Intake,
    diagnostics: Diagnostics,
    diagnostics_due: Instant,
    complaints: Complaints,
    complaints_due: Instant,
    /// What was complained about last, until readings are used again.
    complaint: Option<String>,
    /// Losses that were reported.
    reported_losses: u64,
    settings: config::Node,
}

/// The streams of messages.
struct Subscriptions {
    /// Full names of the magnetometer's topic and the odometry's.
    names: [String; 2],
    readings: Messages<MagneticField>,
    odometry: Messages<Odometry>,
    transforms: Messages<TFMessage>,
    fixed_transforms: Messages<TFMessage>,
}

/// The streams of requests.
struct Services {
    plain: Vec<(Messages<Plain>, fn(Plain) -> Task)>,
    #[cfg(not(feature = "ros-check"))]
    query: Messages<ServiceRequest<QueryField::Service>>,
}

impl Subscriptions {
    fn create(node: &mut Node, config: &Config) -> Result<Self, Error> {
        let sensors = match config.node.reliability {
            Reliability::BestEffort => QosProfile::sensor_data(),
            Reliability::Reliable => QosProfile::default(),
        };
        let sensors = sensors.keep_last(config.node.queue);
        let transforms = QosProfile::default().keep_last(TRANSFORMS);
        let topics = [(&config.topics.magnetometer, "imu/mag"), (&config.topics.odometry, "odom")];
        let [magnetometer, odometry] =
            topics.map(|(named, usual)| if named.is_empty() { usual } else { named.as_str() });
        let full = |topic: &str| {
            let (name, namespace) = (node.name()?, node.namespace()?);
            Ok(names::resolved(topic, &name, &namespace, std::env::args()))
        };
        let full = |topic| full(topic).context(|| "the node has no name".into());
        Ok(Self {
            names: [full(magnetometer)?, full(odometry)?],
            readings: subscribe(node, magnetometer, sensors.clone())?,
            odometry: subscribe(node, odometry, sensors)?,
            transforms: subscribe(node, "/tf", transforms.clone())?,
            fixed_transforms: subscribe(node, "/tf_static", transforms.transient_local())?,
        })
    }
}

fn subscribe<M: WrappedTypesupport + 'static>(
    node: &mut Node,
    topic: &str,
    quality: QosProfile,
) -> Result<Messages<M>, Error> {
    Ok(Box::new(node.subscribe(topic, quality).context(|| format!("cannot subscribe to {topic}"))?))
}

impl Services {
    fn create(node: &mut Node) -> Result<Self, Error> {
        let plain: [(&str, fn(Plain) -> Task); 6] = [
            ("~/flush", Task::Flush),
            ("~/pause", Task::Pause),
            ("~/resume", Task::Resume),
            ("~/save", Task::Save),
            ("~/load", Task::Load),
            ("~/reset", Task::Reset),
        ];
        let mut offered = Vec::with_capacity(plain.len());
        for (name, task) in plain {
            offered.push((offer::<Trigger::Service>(node, name)?, task));
        }
        Ok(Self {
            plain: offered,
            #[cfg(not(feature = "ros-check"))]
            query: offer::<QueryField::Service>(node, "~/query")?,
        })
    }
}

fn offer<S: WrappedServiceTypeSupport + 'static>(
    node: &mut Node,
    name: &str,
) -> Result<Messages<ServiceRequest<S>>, Error> {
    let requests = node.create_service::<S>(name, QosProfile::services_default());
    Ok(Box::new(requests.context(|| format!("cannot offer {name}"))?))
}

/// The next item of a stream, if there is one now.
fn ready<T>(stream: &mut Messages<T>) -> Option<T> {
    stream.next().now_or_never().flatten()
}

impl Spinner {
    fn start(node: &mut Node, parameters: Parameters, hands: Hands, config: &Config) -> Result<Self, Error> {
        let parameters = Arc::new(Mutex::new(parameters));
        let (handler, _) = node
            .make_derived_parameter_handler(Arc::clone(&parameters) as _)
            .context(|| "the services of parameters cannot be offered".into())?;
        let pool = LocalPool::new();
        // A pool that lives takes every task.
        let _ = pool.spawner().spawn_local(handler);
        let topics = Subscriptions::create(node, config)?;
        let [magnetometer, odometry] = &topics.names;
        match config.frames.pose_source {
            PoseSource::Odometry => log::info!("mapping {magnetometer} along {odometry}"),
            PoseSource::Transforms => log::info!("mapping {magnetometer} along the transforms to the map's frame"),
        }
        let now = Instant::now();
        Ok(Self {
            topics,
            services: Services::create(node)?,
            pool,
            parameters,
            hands,
            intake: Intake::new(config),
            diagnostics: Diagnostics::create(node)?,
            diagnostics_due: now,
            complaints: Complaints::new(config),
            complaints_due: now + Duration::from_secs_f64(config.node.complaint_period),
            complaint: None,
            reported_losses: 0,
            settings: config.node.clone(),
        })
    }

    fn run(mut self, node: &mut Node) -> Result<(), Error> {
        while !self.hands.stop.is_stopped() {
            // r2r takes at most one message of each subscription at a time and has room for ten.
            node.spin_once(SPIN);
            self.forward()?;
            self.take_requests();
            self.pool.run_until_stalled();
            self.take_changes();
            self.complain(node);
            self.report(node);
        }
        self.intake.finish();
        Ok(())
    }

    /// Brings everything that came on its way to the mapping thread.
    fn forward(&mut self) -> Result<(), Error> {
        let Self { topics, intake, hands, .. } = self;
        let mut outcome = Ok(());
        let inbox = &hands.inbox;
        let mut sink = |arrival| {
            let sent = match arrival {
                Arrival::Mount(mount) => inbox.set_mount(mount),
                Arrival::Measurement(measurement) => inbox.offer(measurement).map(|_| ()),
            };
            if let Err(error) = sent {
                outcome = Err(error);
            }
        };
        for (stream, is_fixed) in [(&mut topics.fixed_transforms, true), (&mut topics.transforms, false)] {
            while let Some(message) = ready(stream) {
                forward_transforms(intake, &message, is_fixed, &mut sink);
            }
        }
        while let Some(message) = ready(&mut topics.odometry) {
            let frame = hands.desk.shown.frame.get_or_init(|| Arc::from(normalized(&message.header.frame_id)));
            intake.name_map(frame);
            let pose = convert::pose(&message);
            intake.odometry(&message.header.frame_id, &message.child_frame_id, pose, &mut sink);
        }
        while let Some(message) = ready(&mut topics.readings) {
            intake.reading(&message.header.frame_id, convert::reading(&message), &mut sink);
        }
        Ok(outcome?)
    }

    fn take_requests(&mut self) {
        let mut tasks = Vec::new();
        for (requests, task) in &mut self.services.plain {
            while let Some(request) = ready(requests) {
                tasks.push(task(request));
            }
        }
        #[cfg(not(feature = "ros-check"))]
        while let Some(request) = ready(&mut self.services.query) {
            tasks.push(Task::Query(request));
        }
        for task in tasks {
            match &task {
                Task::Pause(_) => self.intake.set_paused(true),
                Task::Resume(_) => self.intake.set_paused(false),
                _ => {}
            }
            self.hand_on(task);
        }
    }

    /// Goes on with parameters that were changed.
    fn take_changes(&mut self) {
        let Some(config) = lock(&self.parameters).take_change() else { return };
        self.settings = config.node.clone();
        self.hand_on(Task::Configure(Box::new(config)));
    }

    /// Gives the service thread something to do; one that has ended answers nothing more.
    fn hand_on(&self, task: Task) {
        let _ = self.hands.tasks.send(task);
    }

    /// Says from time to time why nothing is being mapped, and what was lost.
    fn complain(&mut self, node: &Node) {
        if Instant::now() < self.complaints_due {
            return;
        }
        self.complaints_due = Instant::now() + Duration::from_secs_f64(self.settings.complaint_period);
        let status = self.hands.desk.shown.worker.status();
        let [magnetometer, odometry] = self.topics.names.each_ref().map(|name| Topic {
            name: name.clone(),
            publishers: node.get_publishers_info_by_topic(name, false).ok().map(|publishers| publishers.len()),
        });
        let (arrivals, held) = (self.intake.arrivals(), self.intake.held());
        self.complaint = self.complaints.look(&magnetometer, &odometry, arrivals, held, &status.counters);
        if let Some(complaint) = &self.complaint {
            log::warn!("{complaint}");
        }
        let lost = status.lost_readings + status.lost_poses;
        if lost > self.reported_losses {
            log::warn!(
                "{} measurements were lost: they come faster than they can be mapped; raise worker.inbox, or \
                 averaging.spacing",
                lost - self.reported_losses
            );
            self.reported_losses = lost;
        }
    }

    fn report(&mut self, node: &Node) {
        if Instant::now() < self.diagnostics_due {
            return;
        }
        self.diagnostics_due = Instant::now() + Duration::from_secs_f64(1.0 / self.settings.diagnostics_rate);
        let shown = &self.hands.desk.shown;
        *lock(&shown.unplaced) = self.intake.arrivals().refusals;
        let newest = shown.worker.snapshots().newest();
        let facts = Facts {
            arrivals: self.intake.arrivals(),
            held: self.intake.held(),
            is_paused: self.intake.is_paused(),
            status: &shown.worker.status(),
            backlog: self.hands.inbox.backlog(),
            newest: newest.as_deref(),
            scales: *lock(&shown.scales),
            complaint: self.complaint.as_deref(),
        };
        let clock = node.get_ros_clock();
        let now = lock(&clock).get_now().unwrap_or_default();
        self.diagnostics.publish(&facts, Stamp::from_nanoseconds(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)));
        self.intake.forget_gaps();
    }
}

fn forward_transforms(intake: &mut Intake, message: &TFMessage, is_fixed: bool, sink: &mut impl FnMut(Arrival)) {
    for link in &message.transforms {
        let (parent, child) = (&link.header.frame_id, &link.child_frame_id);
        let Some(transform) = convert::transform(&link.transform) else {
            log::warn!("a transform of frame \"{child}\" in \"{parent}\" is none: it was ignored");
            continue;
        };
        let stamp = (!is_fixed).then(|| convert::stamp(&link.header.stamp));
        if let Some(jump) = intake.transform(parent, child, stamp, transform, sink) {
            log::warn!(
                "frame \"{child}\" jumped by {:.2} m and {:.1} degrees in the frame of the map: what was mapped before stays \
                 where it was",
                jump.distance,
                jump.angle.to_degrees()
            );
        }
    }
}
