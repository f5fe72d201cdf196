//! Results on stdout: tables for people, JSON for programs.

use std::fmt::{Display, Write as _};
use std::io::{self, Write};

use magmap::display::steel;
use magmap::sensing::counters::Counters;
use magmap::sensing::gates::Reopenings;
use magmap::trajectory::Delay;
use magmap_tools::replay::{PathErrors, PathReport, ReplayOutputs, ReplayReport, SlamReport};
use serde::Serialize;

/// Width of the first column.
const LABEL: usize = 18;

/// A table of two columns for people.
#[derive(Default)]
pub struct Table {
    lines: String,
}

impl Table {
    /// Adds a line.
    pub fn row(&mut self, label: &str, value: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{label:LABEL$}{value}");
    }

    /// Adds a line for each value, the first one with the label.
    pub fn rows<T: Display>(&mut self, label: &str, values: impl IntoIterator<Item = T>) {
        values.into_iter().enumerate().for_each(|(index, value)| self.row(if index == 0 { label } else { "" }, value));
    }

    /// Adds the counts of measurements received, used and rejected.
    pub fn counts(&mut self, counters: &Counters) {
        self.row("readings", format!("{} of {} used", counters.used_readings, counters.readings));
        self.row("poses", format!("{} of {} used", counters.poses - counters.rejections.poses(), counters.poses));
        self.rows("rejected", counters.rejections.to_string().lines());
    }

    /// Writes it to stdout.
    pub fn print(&self) -> io::Result<()> {
        io::stdout().lock().write_all(self.lines.as_bytes())
    }
}

/// Writes the results of a replay to stdout.
pub fn print(outcome: &ReplayOutputs) -> io::Result<()> {
    let (report, totals) = (&outcome.report, &outcome.report.totals);
    let mut table = Table::default();
    add_counters(&mut table, &report.counters);
    add_model(&mut table, report);
    if let Some(path) = &report.corrected_path {
        add_path(&mut table, path);
    }
    let resolution = outcome.grid.geometry.resolution;
    table.row("area mapped", format!("{:.1} m² in cells of {resolution} m", totals.mapped_area));
    table.row("time", format!("{:.1} s, of which {:.1} s learning", totals.seconds, totals.learning_seconds));
    table.rows("resumed", &report.resumed);
    table.rows("located", &report.relocated);
    table.rows("chosen", &report.choice);
    table.rows("delay", report.delay);
    table.rows("in doubt", &report.doubt);
    table.rows("changed", &report.changes);
    if report.interrupted {
        table.row("interrupted", "the rest of the recording is not in the map");
    }
    table.rows("lost", &report.loss.items);
    let folder = outcome.files.first().and_then(|file| file.parent()).unwrap_or("".as_ref());
    let names: Vec<_> = outcome.files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    table.row("written", format!("{} in {}", names.len(), folder.display()));
    table.rows("", names.chunks(4).map(|names| names.join(", ")));
    table.print()
}

fn add_counters(table: &mut Table, counters: &Counters) {
    table.counts(counters);
    let Reopenings { max_speed, max_gradient } = counters.reopenings;
    if max_speed + max_gradient > 0 {
        table.row("gates reopened", format!("{} times: what they rejected persisted", max_speed + max_gradient));
    }
    if counters.clock_jumps > 0 {
        table.row("clock went back", format!("{} times", counters.clock_jumps));
    }
    table.row("path", format!("{:.1} m, {} observations", counters.travelled, counters.observations));
}

fn add_model(table: &mut Table, report: &ReplayReport) {
    let totals = &report.totals;
    let ceilings = match (totals.exact_ceilings, totals.upper_ceilings) {
        // Not every method has one.
        (0, 0) => String::new(),
        (_, 0) => ", ruled by the exact ceiling".to_owned(),
        (0, _) => ", ruled by the upper bound".to_owned(),
        (exact, upper) => format!(", {exact} ruled by the exact ceiling, {upper} by the upper bound"),
    };
    table.row("batches", format!("{}{ceilings}", report.batches.len()));
    table.row("inducing points", totals.inducing_points);
    if totals.capped_batches > 0 {
        let words = "batches hit selection.max_inducing_points: the map is less exact than configured";
        table.row("", format!("{} {words}", totals.capped_batches));
    }
    let values = report.hyperparameters.iter().map(|named| format!("{} {:.3}", named.name, named.value));
    table.row("hyperparameters", values.collect::<Vec<_>>().join(", "));
    if let Some(share) = report.share_below {
        table.row("steel", steel::in_words(share));
    }
    table.row("noise", format!("{:.2} µT (standard deviation)", totals.noise_standard_deviation));
}

fn add_path(table: &mut Table, path: &PathReport) {
    table.row("path corrected", format!("by {:.2} m RMS, {:.2} m at most", path.moved, path.moved_most));
    if let Some(SlamReport { length_ratio, drift, delay, delay_deviation, expected_error, revisits, .. }) = &path.slam {
        let stretch = 100.0 * (length_ratio - 1.0);
        table.row("", format!("distances by {stretch:+.2} %, heading by {drift:+.4} rad/m"));
        table.row("", format!("expected error {expected_error:.3} m RMS"));
        table.row("delay", Delay { seconds: *delay, deviation: *delay_deviation, end: None });
        let length: f64 = revisits.iter().map(|revisit| revisit.length).sum();
        let longest = revisits.iter().map(|revisit| revisit.way_round).fold(0.0, f64::max);
        table.row("places revisited", format!("along {length:.0} m of the path, after up to {longest:.0} m"));
        let proven = revisits.iter().filter(|revisit| revisit.evidence > 0.0).count();
        let [weakest, strongest] =
            [f64::min, f64::max].map(|of| revisits.iter().map(|revisit| revisit.evidence).reduce(of));
        if let (Some(weakest), Some(strongest)) = (weakest, strongest) {
            let range = format!("log likelihood ratios {weakest:.1} to {strongest:.1}");
            table.row("", format!("{proven} of {} pieces agree with what was there ({range})", revisits.len()));
        }
    }
    if let Some(PathErrors { odometry, online, corrected, corrected_most, .. }) = &path.truth {
        let online = online.map_or(String::new(), |online| format!(", on the way {online:.3} m"));
        table.row("path error", format!("odometry {odometry:.3} m{online}, corrected {corrected:.3} m RMS"));
        table.row("", format!("corrected {corrected_most:.3} m at most"));
    }
}

/// Writes a value as JSON for programs.
pub fn print_json(value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}
