//! `magmap merge`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::bail;
use clap::Args;
use magmap::config::{Config, Mapped, Program};
use magmap::mapping::stop::StopSignal;
use magmap::sync::lock;
use magmap_tools::cli::{Ending, Refusal, SettingsArguments, Terminal, UsageError};
use magmap_tools::merge::{Error, Input, Joined, Known, Merged, Work, check, merge};
use nalgebra::{Isometry2, Vector2};

use crate::replay::stop_on_interrupt;
use crate::summary::Table;

const EXAMPLES: &str = "\
Examples:
  magmap merge monday.magmap tuesday.magmap --out house.magmap        two days of a robot whose odometry began anew
  magmap merge robot1.magmap robot2.magmap hall-map --out all.magmap  two robots, and the folder of a replay
  magmap merge monday.magmap tuesday.magmap --out house.magmap --transform tuesday.magmap=3,0,70
                                                                      it is known: 3 m along x, turned by 70 degrees
  magmap merge monday.magmap tuesday.magmap --out house.magmap --picture house.png

The first map gives the frame and the settings. The trajectory of every other one is located in a map that is joined already, from \
anywhere, and that one's in it, as `magmap locate` does it. If the place is proven both ways and both agree, the transform is refined \
with all observations, together with the hard iron of the sensor, and the map is joined. One that does not overlap the first may overlap \
the second: the order does not matter. If one cannot be proven, nothing is written (exit code 4), and how far each attempt came is said.

The merged map is learnt again from all observations. It can be used like any other: to locate, to export, to be merged again. No other \
drive can be added to it: merge the map of that drive. Maps that share a run are refused.";

/// Merges maps of the same place into one: other days, other robots, other frames.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Merge {
    /// The maps: files that the node has saved, or folders of replays. All are of strengths, or all of three axes.
    #[arg(required = true, num_args = 2.., value_name = "MAP")]
    maps: Vec<PathBuf>,
    /// The file of the merged map, NAME.magmap.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Where the frame of a map is in that of the first: its origin in metres, and its angle in degrees, counterclockwise. It is taken as it
    /// is. May be repeated.
    #[arg(long = "transform", value_name = "MAP=X,Y,YAW", value_parser = transform, allow_hyphen_values = true)]
    transforms: Vec<(PathBuf, Isometry2<f64>)>,
    /// Write a picture of the merged map with the paths of all maps, NAME.png.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Replace the file of the merged map; the map in it is kept as an earlier one.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    settings: SettingsArguments,
}

fn transform(text: &str) -> Result<(PathBuf, Isometry2<f64>), String> {
    let number = |text: &str| text.trim().parse().ok().filter(|number: &f64| number.is_finite());
    let parsed = text.rsplit_once('=').and_then(|(map, numbers)| {
        let numbers: Option<Vec<f64>> = numbers.split(',').map(number).collect();
        let [x, y, degrees] = numbers?[..] else { return None };
        Some((map.into(), Isometry2::new(Vector2::new(x, y), degrees.to_radians())))
    });
    parsed.ok_or_else(|| {
        format!(
            "expected a map, x and y in metres and an angle in degrees, such as tuesday.magmap=3,0,70, found {text:?}"
        )
    })
}

impl Merge {
    pub fn run(self, terminal: &Terminal) -> anyhow::Result<Ending> {
        if self.out.extension().is_none_or(|extension| extension != "magmap") {
            return Err(UsageError(format!("--out: expected NAME.magmap, found {}", self.out.display())).into());
        }
        if self.out.exists() && !self.force {
            bail!(
                "{} exists; choose another name, or --force to replace it (it is kept as an earlier map)",
                self.out.display()
            );
        }
        let given = self.given()?;
        let localization = self.settings.load_for(Program::Merge, Config::default())?.localization;
        let inputs = self.maps.iter().map(|path| Input::read(path, &localization)).collect::<Result<Vec<_>, _>>()?;
        check(&inputs)?;

        let stop = StopSignal::default();
        stop_on_interrupt(stop.clone(), || "nothing will be written")?;
        let bar = Mutex::new(terminal.bar("merging", 0));
        let begin = |action, steps: usize, message: String| {
            let mut bar = lock(&bar);
            bar.finish_and_clear();
            *bar = terminal.bar(action, steps as u64).with_message(message);
        };
        let watch = |work: Work<'_>| match work {
            Work::Comparing { maps: [map, within], steps } => begin("comparing", steps, format!("{map} with {within}")),
            Work::Learning { steps } => begin("learning", steps, String::new()),
            Work::Step => lock(&bar).inc(1),
        };
        let merged = merge(&inputs, &given, &stop, &watch);
        lock(&bar).finish_and_clear();
        let merged = match merged {
            Err(Error::Interrupted) => return Ok(Ending::Interrupted),
            Err(error @ Error::Unproven(_)) => {
                return Err(Refusal(format!("{error}\nnothing was written; leave out what is of another place, or say where it is with --transform")).into());
            }
            merged => merged?,
        };
        let kept = merged.write(&self.out)?;
        if let Some(picture) = &self.picture {
            merged.write_picture(picture, &inputs, &Config::default().raster)?;
        }
        table(&inputs, &merged, &self.out, self.picture.as_deref(), kept.as_deref()).print()?;
        Ok(Ending::Done)
    }

    /// Where each map is, if that was said.
    fn given(&self) -> anyhow::Result<Vec<Option<Isometry2<f64>>>> {
        let mut given = vec![None; self.maps.len()];
        for (map, transform) in &self.transforms {
            let is_of = |path: &&PathBuf| *path == map || path.file_stem() == Some(map.as_os_str());
            let mut found = (0..).zip(&self.maps).filter(|(_, path)| is_of(path)).map(|(index, _)| index);
            let reason = match (found.next(), found.next()) {
                (Some(0), _) => "is the first map, which gives the frame",
                (Some(_), Some(_)) => "is the name of several maps: write its whole path",
                (Some(index), None) if given[index].is_none() => {
                    given[index] = Some(*transform);
                    continue;
                }
                (Some(_), None) => "is given twice",
                (None, _) => "is not among the maps",
            };
            return Err(UsageError(format!("--transform: {} {reason}", map.display())).into());
        }
        Ok(given)
    }
}

/// The report for people.
fn table(inputs: &[Input], merged: &Merged, out: &Path, picture: Option<&Path>, kept: Option<&Path>) -> Table {
    let mut table = Table::default();
    for Joined { index, known, refined } in &merged.joined {
        let input = &inputs[*index];
        table.row("map", format!("{}: {} observations along {:.1} m", input.name, input.observations(), input.metres));
        let how = match known {
            Known::First => {
                table.row("  frame", "the common one");
                continue;
            }
            Known::Given => "as given".to_owned(),
            Known::Proven { within, evidence } => {
                let [there, back] = [evidence.there, evidence.back].map(|way| 100.0 * way.tracking);
                let apart = evidence.apart.unwrap_or_default();
                format!("found in {}: tracked {there:.0} % and {back:.0} %, {apart:.2} m apart", inputs[*within].name)
            }
        };
        let [x, y]: [f64; 2] = refined.transform.translation.vector.into();
        let [x, y, degrees] = [x, y, refined.transform.rotation.angle().to_degrees()].map(without_sign_of_zero);
        table.row("  frame", format!("{x:.3}, {y:.3} m, {degrees:.2}° ({how})"));
        let residual = refined.residual.zip(refined.unexplained).map(|(residual, unexplained)| {
            format!("{residual:.2} µT, {:.0} % of how the field varies", 100.0 * unexplained)
        });
        match residual {
            Some(residual) => {
                table.row("  residual", format!("{residual}, over {} shared observations", refined.shared))
            }
            None => table.row("  residual", "none: it shares no place with the others"),
        }
        if input.field() == Mapped::Vector {
            let [x, y, z]: [f64; 3] = refined.hard_iron.into();
            table.row("  hard iron", format!("{x:+.2}, {y:+.2}, {z:+.2} µT more than the first sensor"));
        }
    }
    let [low, high] = merged.map.extent;
    table.row("merged", format!("{:.1} m x {:.1} m, {}", high[0] - low[0], high[1] - low[1], merged.map.totals));
    table.rows("written", [Some(out), picture].into_iter().flatten().map(Path::display));
    table.rows("kept", kept.map(|kept| format!("{}, the map that was there", kept.display())));
    table
}

/// The number to three digits, where a zero has no sign.
fn without_sign_of_zero(number: f64) -> f64 {
    (1000.0 * number).round() / 1000.0 + 0.0
}
