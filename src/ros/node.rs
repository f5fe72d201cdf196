//! The ROS thread: spins the node, forwards messages and requests, and reports.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use futures::{FutureExt, Stream, StreamExt};
use r2r::{Node, QosProfile, ServiceRequest, WrappedServiceTypeSupport, WrappedTypesupport};
use r2r::{nav_msgs::msg::Odometry, sensor_msgs::msg::MagneticField, std_msgs::msg::Bool, tf2_msgs::msg::TFMessage};
use strum::VariantArray;

use super::clock::SimulatedTime;
use super::conversions as convert;
use super::diagnostics::Diagnostics;
use super::graph::{TopicList, published_types};
#[cfg(not(feature = "ros-check"))]
use super::interfaces::QueryField;
use super::interfaces::Trigger;
use super::parameters::Parameters;
use super::services::{Command, Task, TriggerRequest};
use super::threads::Threads;
use super::{Context, Error, arguments, logging, names};
use crate::config::{self, Config, Likelihood, PoseSource, Reliability};
use crate::mapping::updates::lock;
use crate::sensing::frames::normalized;
use crate::sensing::health::{Finding, HealthInputs, HealthMonitor, Topic};
use crate::sensing::intake::{Intake, IntakeOutput};
use crate::sensing::reading::{Reading, Sample, Stamp};

/// The node's name unless it is remapped.
const NAME: &str = "magmap";

/// How long the ROS thread waits for messages at a time.
const SPIN: Duration = Duration::from_millis(20);

/// Queue size of the subscriptions to transforms.
const TRANSFORMS: usize = 1000;

type Messages<T> = Box<dyn Stream<Item = T> + Unpin>;

/// Runs the node until it is stopped by SIGINT or SIGTERM.
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
    let ended = RosThread::start(&mut node, parameters, &threads, &config)?.run(&mut node);
    threads.end()?;
    ended
}

/// What the ROS thread works with.
struct RosThread<'a> {
    threads: &'a Threads,
    subscriptions: Subscriptions,
    services: Services,
    pool: LocalPool,
    parameters: Arc<Mutex<Parameters>>,
    settings: config::Node,
    intake: Intake,
    diagnostics: Diagnostics,
    diagnostics_due: Instant,
    health: HealthMonitor,
    health_due: Instant,
    /// Why nothing was being mapped at the last check.
    finding: Option<Finding>,
    /// Simulated time, where it is used.
    simulated_time: Option<SimulatedTime>,
    topic_list: TopicList,
    reported_lost: u64,
    reported_missed: u64,
}

struct Subscriptions {
    /// The topic that is mapped, and that of the odometry, at the last health check.
    topics: [Topic; 2],
    /// With their frames.
    readings: Messages<(String, Reading)>,
    /// Whether they are of a yes/no signal, which has neither stamps nor frames.
    is_signal: bool,
    odometry: Messages<Odometry>,
    transforms: Messages<TFMessage>,
    fixed_transforms: Messages<TFMessage>,
}

struct Services {
    commands: Vec<(Messages<TriggerRequest>, Command)>,
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
        let or_default = |topic: &str, default: &str| if topic.is_empty() { default } else { topic }.to_owned();
        let odometry = or_default(&config.topics.odometry, "odom");
        let is_signal = config.model.likelihood == Likelihood::Bernoulli;
        let (mapped, setting, wanted) = if is_signal {
            (&config.topics.signal, "topics.signal", "std_msgs/msg/Bool")
        } else {
            (&config.topics.magnetometer, "magnetometer_topic", "sensor_msgs/msg/MagneticField")
        };
        let mapped = or_default(mapped, "imu/mag");
        let readings: Messages<(String, Reading)> = if is_signal {
            let reading =
                |Bool { data }| (String::new(), Reading { stamp: Stamp::default(), sample: Sample::Signal(data) });
            Box::new(subscribe(node, &mapped, sensors.clone())?.map(reading))
        } else {
            let reading = |message: MagneticField| (message.header.frame_id.clone(), convert::reading(&message));
            Box::new(subscribe(node, &mapped, sensors.clone())?.map(reading))
        };
        let unnamed = || "the node has no name".to_owned();
        let (name, namespace) = (node.name().context(unnamed)?, node.namespace().context(unnamed)?);
        let topic = |topic: &str, setting, wanted| {
            let name = names::resolved(topic, &name, &namespace, std::env::args());
            Topic { name, setting, wanted, published: None, others: Vec::new() }
        };
        Ok(Self {
            topics: [topic(&mapped, setting, wanted), topic(&odometry, "odometry_topic", "nav_msgs/msg/Odometry")],
            readings,
            is_signal,
            odometry: subscribe(node, &odometry, sensors)?,
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
        let mut offered =
            |&command: &Command| Ok((offer::<Trigger::Service>(node, &format!("~/{}", command.into_str()))?, command));
        Ok(Self {
            commands: Command::VARIANTS.iter().map(&mut offered).collect::<Result<_, Error>>()?,
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

impl<'a> RosThread<'a> {
    fn start(node: &mut Node, parameters: Parameters, threads: &'a Threads, config: &Config) -> Result<Self, Error> {
        let now = Instant::now();
        let simulated_time = parameters.simulated_time().then(|| SimulatedTime::new(now));
        let parameters = Arc::new(Mutex::new(parameters));
        let (handler, _) = node
            .make_derived_parameter_handler(Arc::clone(&parameters) as _)
            .context(|| "the services of parameters cannot be offered".into())?;
        let pool = LocalPool::new();
        // A live pool accepts every task.
        let _ = pool.spawner().spawn_local(handler);
        let subscriptions = Subscriptions::create(node, config)?;
        let [magnetometer, odometry] = subscriptions.topics.each_ref().map(|topic| &topic.name);
        match config.frames.pose_source {
            PoseSource::Odometry => log::info!("mapping {magnetometer} along {odometry}"),
            PoseSource::Transforms => log::info!("mapping {magnetometer} along the transforms to the map's frame"),
        }
        Ok(Self {
            threads,
            subscriptions,
            services: Services::create(node)?,
            pool,
            parameters,
            settings: config.node.clone(),
            intake: Intake::new(config),
            diagnostics: Diagnostics::create(node)?,
            diagnostics_due: now,
            health: HealthMonitor::new(config),
            health_due: now + Duration::from_secs_f64(config.node.complaint_period),
            finding: None,
            simulated_time,
            topic_list: TopicList::new(),
            reported_lost: 0,
            reported_missed: 0,
        })
    }

    fn run(mut self, node: &mut Node) -> Result<(), Error> {
        while !self.threads.stop.is_stopped() {
            // r2r takes at most one message of each subscription at a time and has room for ten.
            node.spin_once(SPIN);
            let time = now(node);
            if let Some(simulated) = &mut self.simulated_time {
                simulated.update(time, Instant::now());
            }
            self.forward(time)?;
            *lock(&self.threads.shared.intake_rejections) = self.intake.status().rejections;
            lock(&self.threads.shared.sensor_frame).clone_from(self.intake.sensor_frame());
            self.take_requests();
            self.pool.run_until_stalled();
            self.take_changed_parameters();
            self.check_health(node);
            self.report(node);
        }
        self.intake.finish();
        Ok(())
    }

    /// Passes everything that arrived until `now` to the intake, and its output to the mapping thread.
    fn forward(&mut self, now: Stamp) -> Result<(), Error> {
        let Self { subscriptions, intake, threads, .. } = self;
        let mut outcome = Ok(());
        let inbox = threads.shared.session.worker().inbox();
        let mut sink = |output| {
            let sent = match output {
                IntakeOutput::Mount(mount) => inbox.set_mount(mount),
                IntakeOutput::Measurement(measurement) => inbox.offer(measurement).map(|_| ()),
            };
            if let Err(error) = sent {
                outcome = Err(error);
            }
        };
        while let Some(message) = ready(&mut subscriptions.fixed_transforms) {
            forward_transforms(intake, &message, true, &mut sink);
        }
        while let Some(message) = ready(&mut subscriptions.transforms) {
            forward_transforms(intake, &message, false, &mut sink);
        }
        while let Some(message) = ready(&mut subscriptions.odometry) {
            intake.name_map(&inbox.name_frame(normalized(&message.header.frame_id))?);
            let pose = convert::pose(&message);
            intake.odometry(&message.header.frame_id, &message.child_frame_id, pose, &mut sink);
        }
        while let Some((frame, mut reading)) = ready(&mut subscriptions.readings) {
            if subscriptions.is_signal {
                reading.stamp = now;
            }
            intake.reading(&frame, reading, &mut sink);
        }
        Ok(outcome?)
    }

    fn take_requests(&mut self) {
        let Self { services, intake, threads, .. } = self;
        for (requests, command) in &mut services.commands {
            while let Some(request) = ready(requests) {
                match command {
                    Command::Pause => intake.set_paused(true),
                    Command::Resume => intake.set_paused(false),
                    _ => {}
                }
                threads.send(Task::Command(*command, request));
            }
        }
        #[cfg(not(feature = "ros-check"))]
        while let Some(request) = ready(&mut services.query) {
            threads.send(Task::Query(request));
        }
    }

    fn take_changed_parameters(&mut self) {
        let Some(config) = lock(&self.parameters).take_change() else { return };
        self.settings = config.node.clone();
        self.threads.send(Task::Configure(Box::new(config)));
    }

    /// Logs periodically why nothing is being mapped, and what was lost.
    fn check_health(&mut self, node: &Node) {
        if Instant::now() < self.health_due {
            return;
        }
        self.health_due = Instant::now() + Duration::from_secs_f64(self.settings.complaint_period);
        self.update_topics(node);
        let (worker, intake) = (self.threads.shared.session.worker(), self.intake.status());
        let status = worker.status();
        let [magnetometer, odometry] = &self.subscriptions.topics;
        let inputs = HealthInputs {
            magnetometer,
            odometry,
            intake,
            held: self.intake.held(),
            backlog: worker.inbox().backlog(),
            counters: &status.counters,
            stopped: self.simulated_time.and_then(|simulated| simulated.stopped(Instant::now())),
        };
        let finding = self.health.check(&inputs).filter(|_| !self.intake.is_paused());
        match &finding {
            Some(Finding::Fault(message)) => log::warn!("{message}"),
            Some(Finding::Idle(message)) if self.finding != finding => log::info!("{message}"),
            _ => {}
        }
        self.finding = finding;
        let lost = status.lost_readings + status.lost_poses;
        let newly_lost = lost.saturating_sub(std::mem::replace(&mut self.reported_lost, lost));
        if newly_lost > 0 {
            log::warn!(
                "{newly_lost} measurements were lost: they arrive faster than they can be mapped; raise worker.inbox, or \
                 averaging.spacing"
            );
        }
        let missed = intake.reading_timing.missed() + intake.odometry_timing.missed();
        let newly_missed = missed.saturating_sub(std::mem::replace(&mut self.reported_missed, missed));
        if newly_missed > 0 {
            log::warn!(
                "about {newly_missed} messages were lost on the way to this node, judging by the gaps between stamps; raise \
                 node.queue, or set node.reliability to reliable where the publishers are"
            );
        }
    }

    /// Updates who publishes on the subscribed topics and, after a fault without a publisher, which topics may be meant instead.
    fn update_topics(&mut self, node: &Node) {
        let was_faulty = matches!(self.finding, Some(Finding::Fault(_)));
        for topic in &mut self.subscriptions.topics {
            topic.published = published_types(node, &topic.name);
            let is_published =
                topic.published.as_ref().is_none_or(|types| types.iter().any(|found| found == topic.wanted));
            topic.others.clear();
            if was_faulty && !is_published {
                self.topic_list.update();
                topic.others = self.topic_list.of_type(topic.wanted, node);
            }
        }
    }

    fn report(&mut self, node: &Node) {
        if Instant::now() < self.diagnostics_due {
            return;
        }
        self.diagnostics_due = Instant::now() + Duration::from_secs_f64(1.0 / self.settings.diagnostics_rate);
        let finding = self.finding.as_ref();
        self.diagnostics.publish(&self.threads.shared, &mut self.intake, finding, now(node));
    }
}

/// The time of the node's clock, which may be simulated.
fn now(node: &Node) -> Stamp {
    let clock = node.get_ros_clock();
    let now = lock(&clock).get_now().unwrap_or_default();
    Stamp::from_nanoseconds(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
}

fn forward_transforms(intake: &mut Intake, message: &TFMessage, is_fixed: bool, sink: &mut impl FnMut(IntakeOutput)) {
    for link in &message.transforms {
        let (parent, child) = (&link.header.frame_id, &link.child_frame_id);
        let Some(transform) = convert::transform(&link.transform) else {
            log::debug!("the transform of frame \"{child}\" in \"{parent}\" is invalid and was rejected");
            intake.reject_transform();
            continue;
        };
        let stamp = (!is_fixed).then(|| convert::stamp(&link.header.stamp));
        if let Some(jump) = intake.transform(parent, child, stamp, transform, sink) {
            log::warn!(
                "frame \"{child}\" jumped by {:.2} m and {:.1} degrees in the frame of the map: what is mapped already does \
                 not move",
                jump.distance,
                jump.angle.to_degrees()
            );
        }
    }
}
