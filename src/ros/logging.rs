//! Sends the log through ROS: to the console, the log file and `/rosout`.

use log::{Level, LevelFilter, Log, Metadata, Record};

struct RosLog {
    /// The name of the node's logger.
    logger: String,
}

/// Installs the logger; `--ros-args --log-level` chooses what is shown.
pub(super) fn install(logger: &str) {
    let log = RosLog { logger: logger.to_owned() };
    // A logger that is installed already, such as that of a test, stays.
    if log::set_boxed_logger(Box::new(log)).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}

impl Log for RosLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("magmap") || metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // ROS takes C strings.
        let words = record.args().to_string().replace('\0', "?");
        let logger = self.logger.as_str();
        match record.level() {
            Level::Error => r2r::log_error!(logger, "{words}"),
            Level::Warn => r2r::log_warn!(logger, "{words}"),
            Level::Info => r2r::log_info!(logger, "{words}"),
            Level::Debug | Level::Trace => r2r::log_debug!(logger, "{words}"),
        }
    }

    fn flush(&self) {}
}
