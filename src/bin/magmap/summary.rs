//! The results of a replay as a table for people.

use std::io::{self, Write};

use magmap::field::quantity::Quantity;
use magmap::replay::{ReplayOutputs, Report};
use magmap::sensing::gates::Reopenings;
use serde::Serialize;

/// Width of the first column.
const LABEL: usize = 18;

/// Writes the table to stdout.
pub fn print(outcome: &ReplayOutputs) -> io::Result<()> {
    write_table(&mut io::stdout().lock(), outcome)
}

fn write_table(out: &mut impl Write, outcome: &ReplayOutputs) -> io::Result<()> {
    let report = &outcome.report;
    write_counts(out, report)?;
    write_model(out, report)?;
    let totals = &report.totals;
    row(
        out,
        "area mapped",
        &format!("{:.1} m² in cells of {} m", totals.mapped_area, outcome.grid.geometry.resolution),
    )?;
    row(out, "time", &format!("{:.1} s, of which {:.1} s learning", totals.seconds, totals.learning_seconds))?;
    if let Some(resumed) = &report.resumed {
        row(out, "resumed", &resumed.to_string())?;
    }
    rows(out, "in doubt", report.doubt.iter())?;
    if report.interrupted {
        row(out, "interrupted", "the rest of the recording is not in the map")?;
    }
    rows(out, "lost", report.loss.items.iter())?;
    let folder = outcome.files.first().and_then(|file| file.parent());
    let names: Vec<_> = outcome.files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    row(out, "written", &format!("{} in {}", names.len(), folder.unwrap_or("".as_ref()).display()))?;
    rows(out, "", names.chunks(4).map(|names| names.join(", ")))
}

fn write_counts(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let counters = &report.counters;
    row(out, "readings", &format!("{} of {} used", counters.used_readings, counters.readings))?;
    row(out, "poses", &format!("{} of {} used", counters.poses - counters.rejections.poses(), counters.poses))?;
    rows(out, "rejected", counters.rejections.to_string().lines())?;
    let Reopenings { max_speed, max_gradient, reading_clock, pose_clock } = counters.reopenings;
    if max_speed + max_gradient > 0 {
        row(out, "gates reopened", &format!("{} times: what they rejected persisted", max_speed + max_gradient))?;
    }
    if reading_clock + pose_clock > 0 {
        row(out, "clock went back", &format!("{reading_clock} times for readings, {pose_clock} times for poses"))?;
    }
    row(out, "path", &format!("{:.1} m, {} observations", counters.travelled, counters.observations))
}

fn write_model(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let totals = &report.totals;
    let ceilings = match (totals.exact_ceilings, totals.upper_ceilings) {
        // Not every method has one.
        (0, 0) => String::new(),
        (_, 0) => ", ruled by the exact ceiling".to_owned(),
        (0, _) => ", ruled by the upper bound".to_owned(),
        (exact, upper) => format!(", {exact} ruled by the exact ceiling, {upper} by the upper bound"),
    };
    row(out, "batches", &format!("{}{ceilings}", report.batches.len()))?;
    row(out, "inducing points", &totals.inducing_points.to_string())?;
    if let Some(memory) = report.batches.iter().rev().find_map(|batch| batch.update.as_ref()?.memory) {
        row(out, "memory", &format!("{memory} observations"))?;
    }
    if totals.capped_batches > 0 {
        let words = "batches hit selection.max_inducing_points: the map is less exact than configured";
        row(out, "", &format!("{} {words}", totals.capped_batches))?;
    }
    let values = report.hyperparameters.iter().map(|named| format!("{} {:.3}", named.name, named.value));
    row(out, "hyperparameters", &values.collect::<Vec<_>>().join(", "))?;
    match report.quantity {
        Quantity::Strength => {
            row(out, "noise", &format!("{:.2} µT (standard deviation)", totals.noise_standard_deviation))
        }
        Quantity::Probability => Ok(()),
    }
}

/// Writes one line.
pub fn row(out: &mut impl Write, label: &str, value: &str) -> io::Result<()> {
    writeln!(out, "{label:LABEL$}{value}")
}

/// Writes a line for each value, the first one with the label.
pub fn rows<T: ToString>(out: &mut impl Write, label: &str, values: impl Iterator<Item = T>) -> io::Result<()> {
    values.enumerate().try_for_each(|(index, value)| row(out, if index == 0 { label } else { "" }, &value.to_string()))
}

/// Writes a value as JSON for programs.
pub fn write_json(out: &mut impl Write, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}
