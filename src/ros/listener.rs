//! The listener, which every node of this package has: subscriptions, the intake, parameters, the clock, and a look at their health.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use futures::{FutureExt, Stream, StreamExt};
use r2r::{Node, Publisher, QosProfile, ServiceRequest, WrappedServiceTypeSupport, WrappedTypesupport};
use r2r::{nav_msgs::msg::Odometry, sensor_msgs::msg::MagneticField, tf2_msgs::msg::TFMessage};

use super::clock::SimulatedTime;
use super::conversions as convert;
use super::names;
use super::parameters::Parameters;
use super::publishers::publishing_nodes;
use crate::config::{self, Config, Reliability};
use crate::sensing::counters::Counters;
use crate::sensing::frames::normalized;
use crate::sensing::health::{Finding, HealthInputs, HealthMonitor, SeveralPublishers, Topic};
use crate::sensing::intake::{Input, Intake, SensorMessage};
use crate::sensing::reading::{Measurement, Pose, Stamp};
use crate::sync::lock;

/// How long the ROS thread waits for messages at a time.
const SPIN: Duration = Duration::from_millis(20);

/// Queue size of the subscriptions to transforms.
const TRANSFORMS: usize = 1000;

/// Messages or requests as they arrive.
pub(super) type Messages<T> = Box<dyn Stream<Item = T> + Unpin>;

/// The listening part of a node.
pub(super) struct Listener {
    pub(super) intake: Intake,
    pub(super) subscriptions: Subscriptions,
    /// The settings of the node, which may change.
    pub(super) settings: config::Node,
    /// The frame of odometry; empty before the first message.
    pub(super) odometry_frame: String,
    /// The newest pose that was passed on.
    pub(super) odometry: Option<Pose>,
    /// Why no reading was used at the last check.
    pub(super) finding: Option<Finding>,
    /// Whether somebody else publishes on a subscribed topic as well.
    pub(super) several_publishers: SeveralPublishers,
    parameters: Arc<Mutex<Parameters>>,
    pool: LocalPool,
    health: HealthMonitor,
    health_due: Instant,
    /// Simulated time, where it is used.
    simulated_time: Option<SimulatedTime>,
    reported_missed: u64,
    reported_lost: u64,
    diagnostics_due: Instant,
}

/// The subscriptions to readings, odometry and transforms.
pub(super) struct Subscriptions {
    /// The topic that is mapped, and that of the odometry, at the last health check.
    pub(super) topics: [Topic; 2],
    readings: Messages<MagneticField>,
    odometry: Messages<Odometry>,
    transforms: Messages<TFMessage>,
    fixed_transforms: Messages<TFMessage>,
}

impl Subscriptions {
    fn create(node: &mut Node, config: &Config) -> anyhow::Result<Self> {
        let sensors = match config.node.reliability {
            Reliability::BestEffort => QosProfile::sensor_data(),
            Reliability::Reliable => QosProfile::default(),
        };
        let sensors = sensors.keep_last(config.node.queue);
        let transforms = QosProfile::default().keep_last(TRANSFORMS);
        let or_default = |topic: &str, default: &str| if topic.is_empty() { default } else { topic }.to_owned();
        let odometry = or_default(&config.topics.odometry, "odom");
        let magnetometer = or_default(&config.topics.magnetometer, "imu/mag");
        let unnamed = "the node has no name";
        let (name, namespace) = (node.name().context(unnamed)?, node.namespace().context(unnamed)?);
        let topic = |topic: &str, setting, wanted| {
            let name = names::resolved(topic, &name, &namespace, std::env::args());
            Topic { name, setting, wanted, published: None }
        };
        Ok(Self {
            topics: [
                topic(&magnetometer, "magnetometer_topic", "sensor_msgs/msg/MagneticField"),
                topic(&odometry, "odometry_topic", "nav_msgs/msg/Odometry"),
            ],
            readings: subscribe(node, &magnetometer, sensors.clone())?,
            odometry: subscribe(node, &odometry, sensors)?,
            transforms: subscribe(node, "/tf", transforms.clone())?,
            fixed_transforms: subscribe(node, "/tf_static", transforms.transient_local())?,
        })
    }
}

/// Subscribes to a topic.
pub(super) fn subscribe<M: WrappedTypesupport + 'static>(
    node: &mut Node,
    topic: &str,
    quality: QosProfile,
) -> anyhow::Result<Messages<M>> {
    Ok(Box::new(node.subscribe(topic, quality).with_context(|| format!("cannot subscribe to {topic}"))?))
}

/// A publisher, for late subscribers as well if it is `latched`.
pub(super) fn publisher<M: WrappedTypesupport>(
    node: &mut Node,
    topic: &str,
    latched: bool,
) -> anyhow::Result<Publisher<M>> {
    let quality = QosProfile::default().keep_last(if latched { 1 } else { 100 }).reliable();
    let quality = if latched { quality.transient_local() } else { quality };
    node.create_publisher(topic, quality).with_context(|| format!("cannot publish {topic}"))
}

/// Number of subscribers.
pub(super) fn subscribers<M: WrappedTypesupport + 'static>(publisher: &Publisher<M>) -> usize {
    publisher.get_inter_process_subscription_count().unwrap_or(0)
}

/// Offers a service.
pub(super) fn offer<S: WrappedServiceTypeSupport + 'static>(
    node: &mut Node,
    name: &str,
) -> anyhow::Result<Messages<ServiceRequest<S>>> {
    let requests = node.create_service::<S>(name, QosProfile::services_default());
    Ok(Box::new(requests.with_context(|| format!("cannot offer {name}"))?))
}

/// The next item of a stream, if there is one now.
pub(super) fn ready<T>(stream: &mut Messages<T>) -> Option<T> {
    stream.next().now_or_never().flatten()
}

impl Listener {
    /// Subscribes, and offers the services of parameters.
    pub(super) fn start(node: &mut Node, parameters: Parameters, config: &Config) -> anyhow::Result<Self> {
        let now = Instant::now();
        let simulated_time = parameters.simulated_time.then(|| SimulatedTime::new(now));
        let parameters = Arc::new(Mutex::new(parameters));
        let (handler, _) = node
            .make_derived_parameter_handler(Arc::clone(&parameters) as _)
            .context("the services of parameters cannot be offered")?;
        let pool = LocalPool::new();
        // A live pool accepts every task.
        let _ = pool.spawner().spawn_local(handler);
        Ok(Self {
            intake: Intake::new(config),
            subscriptions: Subscriptions::create(node, config)?,
            settings: config.node.clone(),
            odometry_frame: String::new(),
            odometry: None,
            finding: None,
            several_publishers: SeveralPublishers::default(),
            parameters,
            pool,
            health: HealthMonitor::new(config),
            health_due: now + Duration::from_secs_f64(config.node.complaint_period),
            simulated_time,
            reported_missed: 0,
            reported_lost: 0,
            diagnostics_due: now,
        })
    }

    /// Waits for messages.
    pub(super) fn spin(&mut self, node: &mut Node) {
        // r2r takes at most one message of each subscription at a time and has room for ten.
        node.spin_once(SPIN);
        if let Some(simulated) = &mut self.simulated_time {
            simulated.update(now(node), Instant::now());
        }
    }

    /// Serves requests for parameters; the settings, if they changed.
    pub(super) fn changed_parameters(&mut self) -> Option<Config> {
        self.pool.run_until_stalled();
        let config = lock(&self.parameters).changed.take()?;
        self.settings = config.node.clone();
        Some(config)
    }

    /// Passes everything that arrived to the intake, and its output to `sink`; whether there was a pose. `name_map` takes the frame of
    /// odometry and returns that in which poses are wanted.
    pub(super) fn forward<E>(
        &mut self,
        mut name_map: impl FnMut(&str) -> Result<Arc<str>, E>,
        mut sink: impl FnMut(Input),
    ) -> Result<bool, E> {
        let Self { subscriptions, intake, odometry_frame, odometry, .. } = self;
        let mut is_moved = false;
        let mut sink = |input| {
            if let Input::Measurement(Measurement::Pose(pose)) = input
                && pose.position.iter().all(|coordinate| coordinate.is_finite())
            {
                (*odometry, is_moved) = (Some(pose), true);
            }
            sink(input);
        };
        while let Some(message) = ready(&mut subscriptions.fixed_transforms) {
            forward_transforms(intake, &message, true, &mut sink);
        }
        while let Some(message) = ready(&mut subscriptions.transforms) {
            forward_transforms(intake, &message, false, &mut sink);
        }
        while let Some(message) = ready(&mut subscriptions.odometry) {
            let name = normalized(&message.header.frame_id);
            if *odometry_frame != name {
                name.clone_into(odometry_frame);
            }
            intake.name_map(&name_map(name)?);
            let (frame, child) = (&message.header.frame_id, &message.child_frame_id);
            match convert::pose(&message) {
                Some(pose) => intake.take(SensorMessage::odometry(frame, child, pose), &mut sink),
                None => intake.reject_invalid_pose(),
            }
        }
        while let Some(message) = ready(&mut subscriptions.readings) {
            intake.take(SensorMessage::reading(&message.header.frame_id, convert::reading(&message)), &mut sink);
        }
        Ok(is_moved)
    }

    /// Logs periodically why no reading is used, what was missed on the way, and what was lost. `backlog` is the number of measurements
    /// that wait for a thread, `lost` that of those dropped because too many waited, and `remedy` says what they came too fast for, and what helps.
    pub(super) fn check_health(&mut self, node: &Node, backlog: usize, counters: &Counters, lost: u64, remedy: &str) {
        if Instant::now() < self.health_due {
            return;
        }
        self.health_due = Instant::now() + Duration::from_secs_f64(self.settings.complaint_period);
        self.update_topics(node);
        let intake = &self.intake.status;
        let [magnetometer, odometry] = &self.subscriptions.topics;
        let inputs = HealthInputs {
            magnetometer,
            odometry,
            intake,
            held: self.intake.held(),
            backlog,
            counters,
            stopped: self.simulated_time.and_then(|simulated| simulated.stopped(Instant::now())),
        };
        let finding = self.health.check(&inputs).filter(|_| !self.intake.paused);
        match &finding {
            Some(Finding::Fault(message)) => log::warn!("{message}"),
            Some(Finding::Idle(message)) if self.finding != finding => log::info!("{message}"),
            _ => {}
        }
        self.finding = finding;
        let missed = intake.reading_timing.missed + intake.odometry_timing.missed;
        let newly_missed = missed.saturating_sub(std::mem::replace(&mut self.reported_missed, missed));
        if newly_missed > 0 {
            log::warn!(
                "about {newly_missed} messages were lost on the way to this node, judging by the gaps between stamps; raise \
                 node.queue, or set node.reliability to reliable where the publishers are"
            );
        }
        let newly_lost = lost.saturating_sub(std::mem::replace(&mut self.reported_lost, lost));
        if newly_lost > 0 {
            log::warn!("{newly_lost} measurements were lost: they arrive faster than {remedy}");
        }
    }

    /// Whether diagnostics are to be published now.
    pub(super) fn are_diagnostics_due(&mut self) -> bool {
        let is_due = Instant::now() >= self.diagnostics_due;
        if is_due {
            self.diagnostics_due = Instant::now() + Duration::from_secs_f64(1.0 / self.settings.diagnostics_rate);
        }
        is_due
    }

    /// Looks who publishes on the subscribed topics, and logs when somebody else does as well, or no more.
    pub(super) fn check_publishers(&mut self, node: &Node) {
        let publishers = |topic: &Topic| publishing_nodes(node, &topic.name, topic.wanted);
        let topics = self.subscriptions.topics.iter().map(|topic| (topic.name.as_str(), publishers(topic)));
        if self.several_publishers.update(topics) {
            match self.several_publishers.warning() {
                Some(warning) => log::warn!("{warning}"),
                None => log::info!("no subscribed topic has several publishers any more"),
            }
        }
    }

    /// Updates who publishes on the subscribed topics.
    fn update_topics(&mut self, node: &Node) {
        for topic in &mut self.subscriptions.topics {
            let publishers = node.get_publishers_info_by_topic(&topic.name, false).ok();
            topic.published = publishers.map(|all| all.into_iter().map(|publisher| publisher.topic_type).collect());
        }
    }
}

/// The time of the node's clock, which may be simulated.
pub(super) fn now(node: &Node) -> Stamp {
    let clock = node.get_ros_clock();
    let now = lock(&clock).get_now().unwrap_or_default();
    Stamp::from_nanoseconds(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
}

fn forward_transforms(intake: &mut Intake, message: &TFMessage, is_fixed: bool, sink: &mut impl FnMut(Input)) {
    for link in &message.transforms {
        let (parent, child) = (&link.header.frame_id, &link.child_frame_id);
        let Some(transform) = convert::transform(&link.transform) else {
            log::debug!("the transform of frame \"{child}\" in \"{parent}\" is invalid and was rejected");
            intake.status.rejected_transforms += 1;
            continue;
        };
        let stamp = (!is_fixed).then(|| convert::stamp(&link.header.stamp));
        intake.take(SensorMessage::transform(parent, child, stamp, transform), sink);
    }
}
