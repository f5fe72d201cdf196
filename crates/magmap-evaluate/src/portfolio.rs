//! What contests leave in a folder: a page that people read, and its pictures.

use super::contest::{Contest, Run, Step};
use magmap::config::{self, Config};
use magmap::export::file::{create_folder, write_atomically};
use magmap::export::map_strip::MapStrip;
use magmap::export::panels::{Curve, Panel, Panels, Scale};
use magmap::export::{Error, MapPicture};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The page, within the folder.
const PAGE: &str = "results.md";
/// The folder of its pictures, within the folder.
const PICTURES: &str = "results";

/// Contests on one page.
#[derive(Clone, Debug)]
pub struct Chapter<'a> {
    /// What the contests were run with.
    pub config: &'a Config,
    /// What the chapter says before its tables, in Markdown.
    pub introduction: String,
    /// One table and its pictures each.
    pub contests: &'a [Contest],
}

/// Writes the page and its pictures. `heading` and `introduction` are what the page begins with, in Markdown.
///
/// # Errors
/// When a file cannot be written.
pub fn write(folder: &Path, heading: &str, introduction: &str, chapters: &[Chapter<'_>]) -> Result<(), Error> {
    let pictures = folder.join(PICTURES);
    create_folder(&pictures)?;
    let mut page = format!("# {heading}\n\n{introduction}\n");
    for Chapter { config, introduction, contests } in chapters {
        if !introduction.is_empty() {
            page.push_str(&format!("\n{introduction}\n"));
        }
        page.push_str(
            &settings(config)
                .map_err(|error| Error::Write { path: self::page(folder), source: std::io::Error::other(error) })?,
        );
        for contest in *contests {
            page.push_str(&section(contest, &pictures)?);
        }
    }
    write_atomically(&folder.join(PAGE), |file| file.write_all(page.as_bytes()))
}

/// The settings that are not the defaults.
fn settings(config: &Config) -> Result<String, config::Error> {
    let (settings, defaults) = (config.settings()?, Config::default().settings()?);
    let changed = settings.iter().zip(&defaults).filter(|(setting, default)| setting.value != default.value);
    let changed: Vec<String> = changed.map(|(setting, _)| format!("`{} = {}`", setting.key, setting.value)).collect();
    Ok(match changed.as_slice() {
        [] => "\nSettings: the defaults.\n".to_owned(),
        changed => format!("\nSettings: the defaults, but for {}.\n", changed.join(", ")),
    })
}

/// The table and the pictures of one contest.
fn section(contest: &Contest, pictures: &Path) -> Result<String, Error> {
    let mut text = format!("\n## {}\n\n{}", capitalized(&contest.name), table(&contest.runs));
    let stem = file_stem(&contest.name);
    let mut add = |kind: &str, about: &str, draw: &dyn Fn(&Path) -> Result<(), Error>| {
        let name = format!("{stem}-{kind}.png");
        draw(&pictures.join(&name))?;
        // Writing to a string cannot fail.
        let _ = write!(text, "\n![{about}]({PICTURES}/{name})\n");
        Ok::<_, Error>(())
    };
    add("batches", &format!("{}, batch by batch", contest.name), &|path| batches(contest).write(path))?;
    if let Some(trade_off) = trade_off(contest) {
        add("trade-off", &format!("{}, accuracy against size", contest.name), &|path| trade_off.write(path))?;
    }
    for run in contest.runs.iter().filter(|run| !run.maps.is_empty()) {
        let kind = format!("map-{}", file_stem(&run.method));
        add(&kind, &format!("Maps of {}", run.method), &|path| write_maps(contest, run, path))?;
    }
    Ok(text)
}

/// How every method did in the end.
fn table(runs: &[Run]) -> String {
    let mut text = "| method | batches | M | RMSE | NLPD | coverage | evaluations | seconds |\n\
                    |---|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for run in runs {
        if let Some(last) = run.last() {
            let Step { batch, inducing_points, rmse, nlpd, coverage, .. } = last;
            let evaluations: usize = run.steps.iter().map(|step| step.evaluations).sum();
            let row = format!(
                "| {} | {batch} | {inducing_points} | {rmse:.3} | {nlpd:.3} | {coverage:.3} | {evaluations} | {:.2} |\n",
                run.method,
                run.seconds()
            );
            text.push_str(&row);
        }
    }
    for run in runs {
        match run.capped() {
            0 => {}
            capped => {
                text.push_str(&format!("\n`{}` met the cap on inducing points in {capped} batches.\n", run.method))
            }
        }
        if let Some(refused) = &run.refused {
            text.push_str(&format!("\n`{}` ended early: {refused}.\n", run.method));
        }
    }
    text
}

/// Size, errors and time of every method, batch by batch.
fn batches(contest: &Contest) -> Panels<'_> {
    let curves = |value: &dyn Fn(&Step) -> f64| -> Vec<Curve> {
        let curve = |run: &Run| Curve {
            name: run.method.clone(),
            points: run.steps.iter().map(|step| (step.batch as f64, value(step))).collect(),
            labels: Vec::new(),
        };
        contest.runs.iter().map(curve).collect()
    };
    let panel = |quantity, scale, value: &dyn Fn(&Step) -> f64| Panel { quantity, scale, curves: curves(value) };
    Panels {
        title: capitalized(&contest.name),
        across: ("batch", Scale::Counts),
        panels: vec![
            panel("inducing points", Scale::Logarithmic, &|step| step.inducing_points as f64),
            panel(rmse_with_unit(contest), Scale::Fitting, &|step| step.rmse),
            panel("NLPD", Scale::Fitting, &|step| step.nlpd),
            panel("seconds per batch", Scale::Logarithmic, &|step| step.seconds),
        ],
    }
}

fn rmse_with_unit(contest: &Contest) -> &'static str {
    if contest.task.is_map { "RMSE (µT)" } else { "RMSE" }
}

/// Errors against size: a curve per method through its parameters; none where no method has inducing points.
fn trade_off(contest: &Contest) -> Option<Panels<'_>> {
    let (mut names, mut runs) = (Vec::new(), Vec::new());
    for run in &contest.runs {
        let Some(last) = run.last().filter(|last| last.inducing_points > 0) else { continue };
        let (name, parameter) = run.method.split_once('=').unwrap_or((&run.method, ""));
        if !names.contains(&name) {
            names.push(name);
        }
        runs.push((name, parameter, last));
    }
    runs.sort_by_key(|(.., last)| last.inducing_points);
    let curves = |value: &dyn Fn(&Step) -> f64| -> Vec<Curve> {
        let curve = |name: &&str| {
            let of_method = runs.iter().filter(|(of, ..)| of == name);
            let point = |last: &Step| (last.inducing_points as f64, value(last));
            let (points, labels) = of_method.map(|&(_, parameter, last)| (point(last), parameter.to_owned())).unzip();
            Curve { name: (*name).to_owned(), points, labels }
        };
        names.iter().map(curve).collect()
    };
    let panel =
        |quantity, value: &dyn Fn(&Step) -> f64| Panel { quantity, scale: Scale::Fitting, curves: curves(value) };
    let rmse = panel(rmse_with_unit(contest), &|step| step.rmse);
    (!rmse.curves.is_empty()).then(|| Panels {
        title: format!("{}: accuracy against size", capitalized(&contest.name)),
        across: ("inducing points", Scale::Logarithmic),
        panels: vec![rmse, panel("NLPD", &|step| step.nlpd)],
    })
}

fn write_maps(contest: &Contest, run: &Run, path: &Path) -> Result<(), Error> {
    let titles: Vec<String> = run.maps.iter().map(|map| format!("Batch {}", map.batch)).collect();
    let maps: Vec<MapPicture<'_>> = run
        .maps
        .iter()
        .zip(&titles)
        .map(|(map, title)| MapPicture {
            grid: &map.grid,
            path: &map.path,
            inducing_points: &map.inducing_points,
            prior_standard_deviation: map.prior_standard_deviation,
            title,
            subtitle: None,
        })
        .collect();
    let title = format!("{}: {}", capitalized(&contest.name), run.method);
    MapStrip { title: &title, maps: &maps }.write(path)
}

/// A name as the first word of a sentence.
fn capitalized(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A name that any file system takes.
fn file_stem(name: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || ".-_".contains(letter);
    let words = name.split(|letter| !is_plain(letter)).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}

/// The page within the folder.
pub fn page(folder: &Path) -> PathBuf {
    folder.join(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::{Readings, Task};
    use crate::maps::MapRecorder;
    use std::fs;
    use streaming_gp::points::Points;

    /// A wave in the plane, in three batches.
    fn task() -> Task {
        let place = |i: usize| [0.1 * (i % 30) as f64, 0.3 * (i / 30) as f64];
        let strength = |[x, y]: [f64; 2]| 50.0 + 8.0 * (2.0 * x).sin() * (1.5 * y).cos();
        let readings = |indices: &[usize]| {
            let places: Vec<[f64; 2]> = indices.iter().map(|&i| place(i)).collect();
            Readings { targets: places.iter().map(|&at| strength(at)).collect(), places: Points::from_arrays(&places) }
        };
        let batch = |number: usize| readings(&(60 * number..60 * (number + 1)).collect::<Vec<_>>());
        let test = readings(&(0..180).step_by(7).collect::<Vec<_>>());
        Task { is_map: true, ..Task::new((0..3).map(batch).collect(), test) }
    }

    #[test]
    fn a_page_holds_what_was_found_and_every_picture_it_names() {
        let (config, task) = (Config::default(), task());
        let run = |method: &str| {
            let mut maps = MapRecorder::new(&task, &config);
            let run = task.run(&method.parse().unwrap(), &config, |batch, learner| maps.see(batch, learner));
            Run { maps: maps.maps, ..run }
        };
        let runs: Vec<Run> = ["vips=0.1", "vips=0.5", "mean"].map(run).into();
        assert_eq!(runs[0].maps.iter().map(|map| map.batch).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(runs[2].maps.is_empty(), "a mean has no map");
        let sizes: Vec<usize> = runs.iter().map(|run| run.last().unwrap().inducing_points).collect();
        let contests = [Contest { name: "a wave".into(), task, runs }];
        let folder = tempfile::tempdir().unwrap();
        let mut changed = config.clone();
        changed.apply_override("selection.delta=0.2").unwrap();
        let chapter = |config| Chapter { config, introduction: "What it is.".into(), contests: &contests };
        write(folder.path(), "Results", "Made by a test.", &[chapter(&config), chapter(&changed)]).unwrap();

        let text = fs::read_to_string(page(folder.path())).unwrap();
        assert!(text.starts_with("# Results\n\nMade by a test.\n\nWhat it is.\n\nSettings: the defaults.\n"), "{text}");
        assert!(text.contains("Settings: the defaults, but for `selection.delta = 0.2`."), "{text}");
        assert!(text.contains("## A wave") && text.contains(&format!("| vips=0.5 | 3 | {} |", sizes[1])), "{text}");
        let pictures: Vec<&str> = text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
        let expected =
            ["batches", "trade-off", "map-vips-0.1", "map-vips-0.5"].map(|kind| format!("results/a-wave-{kind}.png"));
        assert_eq!(pictures[..4], expected);
        for picture in pictures {
            assert!(fs::read(folder.path().join(picture)).unwrap().starts_with(b"\x89PNG"), "{picture}");
        }
    }

    #[test]
    fn the_trade_off_has_a_curve_per_method_in_the_order_of_sizes() {
        let (config, task) = (Config::default(), task());
        let methods = ["vips=0.05", "mean", "vips=0.9", "oips=0.6"];
        let runs = methods.map(|method| task.run(&method.parse().unwrap(), &config, |_, _| ())).into();
        let contest = Contest { name: "a wave".into(), task, runs };
        let panels = trade_off(&contest).unwrap().panels;
        let curves: Vec<(&str, &[String])> =
            panels[0].curves.iter().map(|curve| (curve.name.as_str(), curve.labels.as_slice())).collect();
        assert_eq!(curves, [("vips", &["0.9".to_owned(), "0.05".to_owned()][..]), ("oips", &["0.6".to_owned()][..])]);
        assert_eq!(panels[1].curves[0].points[1].1, contest.runs[0].last().unwrap().nlpd);
    }
}
