//! What a replay came to, for a person.

use std::io::{self, Write};

use magmap::mapping::gates::Reopenings;
use magmap::mapping::quantity::Quantity;
use magmap::mapping::refusal::Refusal;
use magmap::replay::{Outcome, Report};

/// Width of the first column.
const LABEL: usize = 18;

/// Writes the table to stdout.
pub fn print(outcome: &Outcome) -> io::Result<()> {
    write_table(&mut io::stdout().lock(), outcome)
}

fn write_table(out: &mut impl Write, outcome: &Outcome) -> io::Result<()> {
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
    if report.interrupted {
        row(out, "interrupted", "the rest of the recording is not in the map")?;
    }
    for (index, lost) in report.loss.items.iter().enumerate() {
        row(out, if index == 0 { "lost" } else { "" }, &lost.to_string())?;
    }
    let folder = outcome.files.first().and_then(|file| file.parent());
    let names: Vec<_> = outcome.files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    row(out, "written", &format!("{} in {}", names.len(), folder.unwrap_or("".as_ref()).display()))?;
    for names in names.chunks(4) {
        row(out, "", &names.join(", "))?;
    }
    Ok(())
}

fn write_counts(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let counters = &report.counters;
    row(out, "readings", &format!("{} of {} used", counters.used_readings, counters.readings))?;
    row(out, "poses", &format!("{} of {} used", counters.poses - refused_poses(report), counters.poses))?;
    let refused = counters.refusals.iter().filter(|(_, count)| *count > 0);
    for (index, (refusal, count)) in refused.enumerate() {
        row(out, if index == 0 { "refused" } else { "" }, &format!("{count} {refusal}"))?;
    }
    let Reopenings { max_speed, max_gradient, reading_clock, pose_clock } = counters.reopenings;
    if max_speed + max_gradient > 0 {
        row(out, "gates reopened", &format!("{} times: what they refused went on and on", max_speed + max_gradient))?;
    }
    if reading_clock + pose_clock > 0 {
        row(out, "clock went back", &format!("{reading_clock} times for readings, {pose_clock} times for poses"))?;
    }
    row(out, "path", &format!("{:.1} m, {} observations", counters.travelled, counters.observations))
}

fn refused_poses(report: &Report) -> u64 {
    let of_poses = |refusal: &Refusal| !refusal.concerns_reading();
    report.counters.refusals.iter().filter(|(refusal, _)| of_poses(refusal)).map(|(_, count)| count).sum()
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
        let words = "batches hit selection.max_inducing_points: the map is less exact than asked for";
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

/// One line.
pub fn row(out: &mut impl Write, label: &str, value: &str) -> io::Result<()> {
    writeln!(out, "{label:LABEL$}{value}")
}
