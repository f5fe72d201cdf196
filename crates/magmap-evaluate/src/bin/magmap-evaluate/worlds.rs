//! `magmap-evaluate worlds`.

use std::io::{self, Write};

use clap::Args;
use magmap::config::{Config, Mapped};
use magmap_evaluate::outliers::Outliers;
use magmap_evaluate::worlds::rooms::{self, Fault, RoomScores};
use magmap_evaluate::worlds::{self, WorldScores};
use magmap_tools::cli::{Ending, Terminal};
use magmap_tools::simulation::Steel;
use serde_json::json;

use super::arguments::Common;

/// Arguments of the simulated worlds.
#[derive(Args)]
pub struct Arguments {
    /// Worlds of each kind.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Rooms with dipoles, a hard iron of the robot, and some faults of it, instead of random fields of strengths. Always so with
    /// model.field = "vector".
    #[arg(long)]
    rooms: bool,
    /// Only rooms with the steel there; all without it.
    #[arg(long, value_enum, value_name = "WHERE", requires = "rooms")]
    steel: Option<Steel>,
    #[command(flatten)]
    outliers: Outliers,
    #[command(flatten)]
    common: Common,
}

/// Maps worlds, and shows how well.
pub fn run(arguments: &Arguments, terminal: &Terminal) -> anyhow::Result<Ending> {
    let Arguments { seeds, rooms, steel, outliers, common } = arguments;
    let config = common.config_of_any_field(Config::default())?;
    let seeds = 1..seeds + 1;
    let mut out = io::stdout().lock();
    let (seconds, worlds) = if *rooms || config.model.field == Mapped::Vector {
        let run = |setting: &rooms::Setting| rooms::run(setting, seeds.clone(), &config, *outliers);
        let is_wanted = |setting: &rooms::Setting| steel.is_none_or(|steel| setting.steel == steel);
        let settings: Vec<_> = rooms::settings().into_iter().filter(is_wanted).collect();
        let found = of_each(&settings, run, terminal)?;
        write_rooms(&mut out, &found, seeds.clone().count())?;
        (found.iter().map(|room| room.scores.seconds).sum::<f64>(), json!(found))
    } else {
        let run = |setting: &worlds::Setting| worlds::run(setting, seeds.clone(), &config, *outliers);
        let found = of_each(&worlds::settings(), run, terminal)?;
        write_worlds(&mut out, &found)?;
        (found.iter().map(|world| world.seconds).sum(), json!(found))
    };
    common.write_json(&config, json!({ "seconds": seconds, "seeds": seeds, "worlds": worlds }))?;
    Ok(Ending::Done)
}

fn of_each<S, F>(settings: &[S], run: impl Fn(&S) -> anyhow::Result<F>, terminal: &Terminal) -> anyhow::Result<Vec<F>> {
    let bar = terminal.bar("evaluating", settings.len() as u64);
    let found = settings.iter().map(|setting| run(setting).inspect(|_| bar.inc(1))).collect();
    bar.finish_and_clear();
    found
}

/// The columns that all worlds have.
fn columns<S>(world: &WorldScores<S>) -> String {
    format!(
        "{:4.0} | {:6.3} {:6.3} |    {:.3} ({:.3}) |       {:4.2} ({:4.2})  | {:6.3}",
        world.inducing_points.median,
        world.scores.rmse,
        world.scores.nlpd,
        world.scores.coverage,
        world.coverage_by_world.least,
        world.caution,
        world.caution_by_world.greatest,
        world.seconds,
    )
}

const COLUMNS: &str = "   M |   RMSE   NLPD | coverage (least) | sd/RMSE (greatest) |      s";

fn write_rooms(out: &mut impl Write, found: &[RoomScores], seeds: usize) -> io::Result<()> {
    writeln!(
        out,
        "field sd  steel   distances of dipoles  noise  fault   |{COLUMNS} | hard iron: RMSE, worst/sd | in doubt"
    )?;
    for RoomScores { scores, in_doubt, hard_iron_rmse, hard_iron_worst } in found {
        let rooms::Setting { standard_deviation, steel, distance: [least, greatest], noise, fault, .. } =
            scores.setting;
        let [steel, fault] = [format!("{steel:?}"), format!("{fault:?}")].map(|name| name.to_lowercase());
        let [rmse, worst] =
            [hard_iron_rmse, hard_iron_worst].map(|value| value.map_or("-".to_owned(), |value| format!("{value:.2}")));
        writeln!(
            out,
            "{standard_deviation:8.0}  {steel:6}  {least:12.2} to {greatest:4.2}  {noise:5.1}  {fault:7} |{} |       {rmse:>8} {worst:>10} | {in_doubt} of {seeds}",
            columns(scores)
        )?;
    }
    let sound = || found.iter().map(|room| &room.scores).filter(|scores| scores.setting.fault == Fault::None);
    let least = sound().map(|scores| scores.scores.coverage).fold(f64::NAN, f64::min);
    let greatest = sound().map(|scores| scores.caution).fold(f64::NAN, f64::max);
    writeln!(out, "without a fault: least coverage {least:.3}, greatest sd/RMSE {greatest:.2}")
}

fn write_worlds(out: &mut impl Write, scores: &[WorldScores]) -> io::Result<()> {
    writeln!(out, "field sd  lengthscale  noise |{COLUMNS}")?;
    for world in scores {
        let worlds::Setting { standard_deviation, lengthscale, noise } = world.setting;
        writeln!(out, "{standard_deviation:8.0}  {lengthscale:11.1}  {noise:5.1} |{}", columns(world))?;
    }
    let least = scores.iter().map(|world| world.scores.coverage).fold(f64::NAN, f64::min);
    writeln!(out, "least coverage {least:.3}")?;
    let (weakest, others): (Vec<_>, Vec<_>) =
        scores.iter().partition(|world| world.setting.standard_deviation == worlds::STANDARD_DEVIATIONS[0]);
    let [weakest, others] =
        [weakest, others].map(|worlds| worlds.iter().map(|world| world.caution).fold(f64::NAN, f64::max));
    writeln!(out, "greatest sd/RMSE {weakest:.2} in the weakest fields, {others:.2} in the others")
}
