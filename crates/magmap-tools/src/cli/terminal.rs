//! Stderr: the log and progress bars, without overwriting each other.

use std::io::{self, Write};

use env_logger::Target;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use log::LevelFilter;

use super::Verbosity;

/// Stderr.
pub struct Terminal {
    bars: MultiProgress,
}

impl Verbosity {
    /// Sets up the log. Bars are drawn only if stderr is a terminal.
    pub fn terminal(&self) -> Terminal {
        let &Self { verbose, quiet } = self;
        let bars = MultiProgress::new();
        if quiet {
            bars.set_draw_target(ProgressDrawTarget::hidden());
        }
        let level = match (quiet, verbose) {
            (true, _) => LevelFilter::Error,
            (false, 0) => LevelFilter::Warn,
            (false, 1) => LevelFilter::Info,
            (false, 2) => LevelFilter::Debug,
            (false, _) => LevelFilter::Trace,
        };
        env_logger::Builder::new()
            .filter_module("magmap", level)
            .parse_env("RUST_LOG")
            .format_timestamp(None)
            .format_target(false)
            .target(Target::Pipe(Box::new(AboveBars(bars.clone()))))
            .init();
        Terminal { bars }
    }
}

impl Terminal {
    /// A bar of `length` steps; `action` names the work.
    pub fn bar(&self, action: &'static str, length: u64) -> ProgressBar {
        let style = ProgressStyle::with_template("{prefix} [{bar:32}] {percent:>3} %  {elapsed_precise}  {msg}");
        let bar = ProgressBar::new(length)
            .with_prefix(action)
            // The template is a constant and valid.
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        self.bars.add(bar)
    }
}

/// Writes whole log lines while the bars are hidden.
struct AboveBars(MultiProgress);

impl Write for AboveBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
