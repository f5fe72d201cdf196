//! The log goes where ROS sends it: to the console in ROS's format, to the log file, to `/rosout`.

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Sends records to the logger of the node.
struct RosLog {
    /// The node's logger.
    logger: String,
}

/// Installs it; `--ros-args --log-level` chooses what is shown.
pub(super) fn install(logger: &str) {
    let log = RosLog { logger: logger.to_owned() };
    // A logger that is there already stays: that of a test.
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
