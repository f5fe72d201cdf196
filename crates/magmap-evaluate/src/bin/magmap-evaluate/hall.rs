//! `magmap-evaluate hall`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use magmap::config::Config;
use magmap::field::map::SensorBias;
use magmap_evaluate::hall::{self, Hall, HallOutcome, HallScores};
use magmap_tools::cli::{Ending, Terminal};
use magmap_tools::export::map_picture::MapPicture;

use super::arguments::Common;

/// Arguments of the hall.
#[derive(Args)]
pub struct Arguments {
    /// Side of the hall, in metres.
    #[arg(long, value_name = "METRES", default_value_t = 60.0)]
    side: f64,
    /// Distance between the lanes, in metres.
    #[arg(long, value_name = "METRES", default_value_t = 1.0)]
    lanes: f64,
    /// Seed of the hall and of the noise.
    #[arg(long, default_value_t = 3)]
    seed: u64,
    /// Also draws the map into this file.
    #[arg(long, value_name = "PNG")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Maps the hall, and shows at what cost and how well.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let Arguments { side, lanes, seed, picture, common } = arguments;
    let mut base = Config::default();
    base.raster.resolution = 0.1;
    let config = common.config_of_any_field(base)?;
    let hall = Hall { side: *side, lanes: *lanes, seed: *seed };
    let bar = terminal.bar("mapping", 0);
    let outcome = hall::run(&hall, &config, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();

    let HallOutcome { scores, map, mut rasterizer, path } = outcome;
    write_scores(&mut io::stdout().lock(), &scores)?;
    common.write_json(&config, &scores)?;
    if let Some(file) = picture {
        let grid = rasterizer.rasterize(&map, &[])?;
        let picture = MapPicture {
            grid,
            path: &path,
            inducing_points: &map.inducing_points(),
            changes: &[],
            prior_standard_deviation: map.prior_standard_deviation(),
            title: "a simulated hall",
            subtitle: None,
        };
        picture.write_mean(file)?;
    }
    Ok(Ending::Done)
}

fn write_scores(out: &mut impl Write, scores: &HallScores) -> io::Result<()> {
    let HallScores { length, updates, inducing_points, speedup, .. } = scores;
    writeln!(out, "{length:.0} m, {updates} updates, {inducing_points} inducing points")?;
    writeln!(out, "                     second tenth   last tenth")?;
    let rows = [
        ("update, p99 (s)", scores.update_p99_first, scores.update_p99_last),
        ("raster, p99 (s)", scores.publish_p99_first, scores.publish_p99_last),
        ("RMSE (microtesla)", scores.rmse_first, scores.rmse_last),
        ("coverage", scores.coverage_first, scores.coverage_last),
    ];
    for (name, first, last) in rows {
        writeln!(out, "{name:20}  {first:11.3}  {last:11.3}")?;
    }
    let alone = scores.rmse_last_alone;
    writeln!(out, "RMSE in the last tenth of a map that begins a tenth before it: {alone:.3} microtesla")?;
    for (when, bias) in [("then", &scores.bias_first), ("at the end", &scores.bias_last)] {
        if let Some(SensorBias { hard_iron: [x, y, _], hard_iron_sd: [sd_x, sd_y, _], .. }) = bias {
            writeln!(out, "hard iron {when}, which is 0: {x:.2} ({sd_x:.2}), {y:.2} ({sd_y:.2}) microtesla")?;
        }
    }
    if let Some(ratio) = scores.seam_ratio {
        writeln!(
            out,
            "largest change of the mean over 5 cm where tiles fade into each other: {ratio:.2} times that elsewhere"
        )?;
    }
    writeln!(out, "learnt {speedup:.0} times as fast as driven")?;
    let HallScores { resident_mb_half, resident_mb, resident_mb_most, .. } = *scores;
    let [Some(half), Some(end), Some(most)] = [resident_mb_half, resident_mb, resident_mb_most] else { return Ok(()) };
    writeln!(out, "resident memory {half:.0} MB halfway, {end:.0} MB at the end of the drive, at most {most:.0} MB")
}
