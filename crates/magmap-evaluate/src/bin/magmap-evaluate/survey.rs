//! `magmap-evaluate survey`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use magmap::config::{Config, Mapped};
use magmap::display::steel;
use magmap::sensing::reading::Measurement;
use magmap_evaluate::survey::{self, SurveyScores};
use magmap_tools::cli::{Ending, Terminal};
use magmap_tools::recording::{self, Kind};

use super::arguments::Common;

/// Arguments of the surveys.
#[derive(Args)]
pub struct Arguments {
    /// The survey that is learnt, as plain CSV: x, y, z, and bx, by, bz or mx, my, mz.
    #[arg(long, value_name = "CSV")]
    train: PathBuf,
    /// The survey that the map is tested on.
    #[arg(long, value_name = "CSV")]
    test: PathBuf,
    #[command(flatten)]
    common: Common,
}

/// Learns one survey, and shows how well its map predicts the other.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let Arguments { train, test, common } = arguments;
    let mut base = Config::default();
    base.model.field = Mapped::Vector;
    let config = common.config_of_any_field(base)?;
    let (train, test) = (read(train, &config)?, read(test, &config)?);
    let bar = terminal.bar("learning", 0);
    let scores = survey::run(train, test, &config)?;
    bar.finish_and_clear();
    write_scores(&mut io::stdout().lock(), &scores)?;
    common.write_json(&config, &scores)?;
    Ok(Ending::Done)
}

fn read(path: &Path, config: &Config) -> anyhow::Result<Vec<Measurement>> {
    let recording = recording::open(path, config)?;
    if recording.summary.kind != Kind::SurveyCsv {
        bail!("{}: expected a survey as plain CSV, found another recording", path.display());
    }
    recording.loss.items.iter().for_each(|lost| log::warn!("{lost}"));
    Ok(recording.measurements().collect::<Result<_, _>>()?)
}

fn write_scores(out: &mut impl Write, scores: &SurveyScores) -> io::Result<()> {
    let SurveyScores { learnt, observations, tested, strength, rmse_nearest_neighbour, .. } = scores;
    writeln!(out, "{learnt} readings learnt in {observations} observations, {tested} tested")?;
    if let Some(axes) = &scores.axes {
        writeln!(
            out,
            "axes       mean squared error {:.3} µT², NLPD {:.3}, MSLL {:.3}, coverage {:.3}",
            axes.mean_squared_error, axes.nlpd, axes.msll, axes.coverage
        )?;
    }
    writeln!(
        out,
        "strength   RMSE {:.3} µT (nearest reading {rmse_nearest_neighbour:.3}), NLPD {:.3}, coverage {:.3}",
        strength.rmse, strength.nlpd, strength.coverage
    )?;
    let values = scores.hyperparameters.iter().map(|named| format!("{} {:.3}", named.name, named.value));
    writeln!(out, "model      {} inducing points; {}", scores.inducing_points, values.collect::<Vec<_>>().join(", "))?;
    if let Some(share) = scores.share_below {
        writeln!(out, "steel      {}", steel::in_words(share))?;
    }
    let microseconds = 1e6 * scores.prediction_seconds;
    writeln!(out, "time       learning {:.2} s, a prediction {microseconds:.1} µs", scores.learning_seconds)
}
