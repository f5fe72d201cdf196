//! The ROS thread: spins the node, forwards what comes, and looks after everything else.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use futures::{FutureExt, Stream, StreamExt};
use r2r::{Node, QosProfile, ServiceRequest, WrappedServiceTypeSupport, WrappedTypesupport};
use r2r::{nav_msgs::msg::Odometry, sensor_msgs::msg::MagneticField, std_msgs::msg::Bool, tf2_msgs::msg::TFMessage};

use super::clock::SimulatedTime;
use super::conversions as convert;
use super::diagnostics::{Diagnostics, Facts};
use super::graph::{Topics, published_types};
#[cfg(not(feature = "ros-check"))]
use super::interfaces::QueryField;
use super::interfaces::Trigger;
use super::parameters::Parameters;
use super::services::{MakeTask, Plain, Task};
use super::threads::{Hands, Threads};
use super::{Context, Error, arguments, logging, names};
use crate::config::{self, Config, Likelihood, PoseSource, Reliability};
use crate::mapping::complaint::{Complaints, Remark, Scene, Topic};
use crate::mapping::frames::normalized;
use crate::mapping::intake::{Arrival, Intake};
use crate::mapping::reading::{Reading, Stamp};
use crate::mapping::worker::lock;

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
    let mut node =
        Node::create(arguments::context()?, NAME, "").context(|| format!("node {NAME} cannot be created"))?;
    logging::install(node.logger());
    let parameters = Parameters::from_given(&lock(&node.params))?;
    let config = parameters.config().clone();
    let threads = Threads::start(&mut node, &config)?;
    let ended = Spinner::start(&mut node, parameters, threads.hands(), &config)?.run(&mut node);
    threads.end()?;
    ended
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
    /// Why nothing was being mapped at the last look, if nothing was.
    remark: Option<Remark>,
    /// Simulated time, where it is used.
    simulated_time: Option<SimulatedTime>,
    /// Topics that could have been meant.
    topics_there_are: Topics,
    /// Losses that were reported.
    reported_losses: u64,
    /// Messages that did not come, of which that was reported.
    reported_misses: u64,
    settings: config::Node,
}

/// The streams of messages.
struct Subscriptions {
    /// The topic that is mapped and the odometry's, as they were when they were looked at last.
    named: [Topic; 2],
    readings: Readings,
    odometry: Messages<Odometry>,
    transforms: Messages<TFMessage>,
    fixed_transforms: Messages<TFMessage>,
}

/// The messages that are mapped.
enum Readings {
    Magnetometer(Messages<MagneticField>),
    /// A yes/no signal.
    Signal(Messages<Bool>),
}

/// The streams of requests.
struct Services {
    plain: Vec<(Messages<Plain>, MakeTask)>,
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
        let is_signal = config.model.likelihood == Likelihood::Bernoulli;
        let mapped = if is_signal { &config.topics.signal } else { &config.topics.magnetometer };
        let topics = [(mapped, "imu/mag"), (&config.topics.odometry, "odom")];
        let [mapped, odometry] = topics.map(|(named, usual)| if named.is_empty() { usual } else { named.as_str() });
        let full = |topic: &str| {
            let (name, namespace) = (node.name()?, node.namespace()?);
            Ok(names::resolved(topic, &name, &namespace, std::env::args()))
        };
        let full = |topic| full(topic).context(|| "the node has no name".into());
        let topic = |name, setting, wanted| Topic { name, setting, wanted, published: None, others: Vec::new() };
        let mapped_topic = match is_signal {
            true => topic(full(mapped)?, "topics.signal", "std_msgs/msg/Bool"),
            false => topic(full(mapped)?, "magnetometer_topic", "sensor_msgs/msg/MagneticField"),
        };
        Ok(Self {
            named: [mapped_topic, topic(full(odometry)?, "odometry_topic", "nav_msgs/msg/Odometry")],
            readings: match is_signal {
                true => Readings::Signal(subscribe(node, mapped, sensors.clone())?),
                false => Readings::Magnetometer(subscribe(node, mapped, sensors.clone())?),
            },
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
        let plain: [(&str, MakeTask); 6] = [
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
        let now = Instant::now();
        let simulated_time = parameters.simulated_time().then(|| SimulatedTime::new(now));
        let parameters = Arc::new(Mutex::new(parameters));
        let (handler, _) = node
            .make_derived_parameter_handler(Arc::clone(&parameters) as _)
            .context(|| "the services of parameters cannot be offered".into())?;
        let pool = LocalPool::new();
        // A pool that lives takes every task.
        let _ = pool.spawner().spawn_local(handler);
        let topics = Subscriptions::create(node, config)?;
        let [magnetometer, odometry] = topics.named.each_ref().map(|topic| &topic.name);
        match config.frames.pose_source {
            PoseSource::Odometry => log::info!("mapping {magnetometer} along {odometry}"),
            PoseSource::Transforms => log::info!("mapping {magnetometer} along the transforms to the map's frame"),
        }
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
            remark: None,
            simulated_time,
            topics_there_are: Topics::new(),
            reported_losses: 0,
            reported_misses: 0,
            settings: config.node.clone(),
        })
    }

    fn run(mut self, node: &mut Node) -> Result<(), Error> {
        while !self.hands.stop.is_stopped() {
            // r2r takes at most one message of each subscription at a time and has room for ten.
            node.spin_once(SPIN);
            let time = now(node);
            if let Some(simulated) = &mut self.simulated_time {
                simulated.see(time, Instant::now());
            }
            self.forward(time)?;
            *lock(&self.hands.desk.shown.unplaced) = self.intake.arrivals().refusals;
            self.take_requests();
            self.pool.run_until_stalled();
            self.take_changes();
            self.complain(node);
            self.report(node);
        }
        self.intake.finish();
        Ok(())
    }

    /// Brings everything that came until `now` on its way to the mapping thread.
    fn forward(&mut self, now: Stamp) -> Result<(), Error> {
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
            let frame =
                hands.desk.shown.session.frame().get_or_init(|| Arc::from(normalized(&message.header.frame_id)));
            intake.name_map(frame);
            let pose = convert::pose(&message);
            intake.odometry(&message.header.frame_id, &message.child_frame_id, pose, &mut sink);
        }
        match &mut topics.readings {
            Readings::Magnetometer(messages) => {
                while let Some(message) = ready(messages) {
                    intake.reading(&message.header.frame_id, convert::reading(&message), &mut sink);
                }
            }
            Readings::Signal(messages) => {
                // It says neither when nor where.
                while let Some(Bool { data }) = ready(messages) {
                    intake.reading("", Reading::of_signal(now, data), &mut sink);
                }
            }
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
        let status = self.hands.desk.shown.session.worker().status();
        self.look_at_topics(node);
        let [magnetometer, odometry] = &self.topics.named;
        let scene = Scene {
            magnetometer,
            odometry,
            arrivals: self.intake.arrivals(),
            held: self.intake.held(),
            backlog: self.hands.inbox.backlog(),
            counters: &status.counters,
            stopped: self.simulated_time.and_then(|simulated| simulated.stopped(Instant::now())),
        };
        let remark = self.complaints.look(&scene).filter(|_| !self.intake.is_paused());
        let is_new = self.remark != remark;
        self.remark = remark;
        match &self.remark {
            Some(Remark::Complaint(words)) => log::warn!("{words}"),
            // Until it advances again there is nothing else to say.
            Some(Remark::Rest(words)) if is_new => log::info!("{words}"),
            _ => {}
        }
        let arrivals = self.intake.arrivals();
        let lost = status.lost_readings + status.lost_poses;
        if lost > self.reported_losses {
            log::warn!(
                "{} measurements were lost: they come faster than they can be mapped; raise worker.inbox, or \
                 averaging.spacing",
                lost - self.reported_losses
            );
            self.reported_losses = lost;
        }
        let missed = arrivals.reading_rhythm.missed() + arrivals.odometry_rhythm.missed();
        if missed > self.reported_misses {
            log::warn!(
                "about {} messages were lost before they came here, as the gaps between stamps show; raise node.queue, or set \
                 node.reliability to reliable where the publishers are",
                missed - self.reported_misses
            );
            self.reported_misses = missed;
        }
    }

    /// Looks who publishes on our topics, and, where it was already complained that nobody does, what else could be meant.
    fn look_at_topics(&mut self, node: &Node) {
        let was_complained = matches!(self.remark, Some(Remark::Complaint(_)));
        for topic in &mut self.topics.named {
            topic.published = published_types(node, &topic.name);
            let is_published =
                topic.published.as_ref().is_none_or(|types| types.iter().any(|found| found == topic.wanted));
            topic.others.clear();
            if was_complained && !is_published {
                self.topics_there_are.list();
                topic.others = self.topics_there_are.of_type(topic.wanted, node);
            }
        }
    }

    fn report(&mut self, node: &Node) {
        if Instant::now() < self.diagnostics_due {
            return;
        }
        self.diagnostics_due = Instant::now() + Duration::from_secs_f64(1.0 / self.settings.diagnostics_rate);
        let shown = &self.hands.desk.shown;
        let worker = shown.session.worker();
        let newest = worker.snapshots().newest();
        let longest_gaps = self.intake.take_longest_gaps();
        let journal = shown.session.journal();
        let facts = Facts {
            longest_gaps,
            arrivals: self.intake.arrivals(),
            held: self.intake.held(),
            is_paused: self.intake.is_paused(),
            status: &worker.status(),
            readings_before: shown.session.before().readings,
            journal: journal.as_ref(),
            backlog: self.hands.inbox.backlog(),
            newest: newest.as_deref(),
            scales: *lock(&shown.scales),
            remark: self.remark.as_ref(),
        };
        self.diagnostics.publish(&facts, now(node));
    }
}

/// The time of the node's clock, which is simulated where the middleware is told so.
fn now(node: &Node) -> Stamp {
    let clock = node.get_ros_clock();
    let now = lock(&clock).get_now().unwrap_or_default();
    Stamp::from_nanoseconds(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
}

fn forward_transforms(intake: &mut Intake, message: &TFMessage, is_fixed: bool, sink: &mut impl FnMut(Arrival)) {
    for link in &message.transforms {
        let (parent, child) = (&link.header.frame_id, &link.child_frame_id);
        let Some(transform) = convert::transform(&link.transform) else {
            log::debug!("a transform of frame \"{child}\" in \"{parent}\" is none: it is refused");
            intake.refuse_transform();
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
