//! Comparisons as a page to read, with its pictures.

use super::comparison::{BatchResult, Comparison, Run};
use super::maps::FinalMap;
use magmap::config::{self, Config};
use magmap_tools::export::curves::{AxisScale, Chart, Charts, Curve};
use magmap_tools::export::file::{create_folder, write_atomically};
use magmap_tools::export::{Error, MapPicture};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The page, within the folder.
const PAGE: &str = "results.md";
/// The folder of its pictures, within the folder.
const PICTURES: &str = "results";

/// Comparisons with the same settings.
#[derive(Clone, Copy, Debug)]
pub struct Chapter<'a> {
    /// The settings.
    pub config: &'a Config,
    /// The comparisons, with one table and its pictures each.
    pub comparisons: &'a [Comparison],
}

/// Writes the page and its pictures, and returns the path of the page. It begins with `heading` and `introduction`, in Markdown.
///
/// # Errors
/// When a file cannot be written.
pub fn write(folder: &Path, heading: &str, introduction: &str, chapters: &[Chapter<'_>]) -> anyhow::Result<PathBuf> {
    let pictures = folder.join(PICTURES);
    create_folder(&pictures)?;
    let mut page = format!("# {heading}\n\n{introduction}\n");
    for Chapter { config, comparisons } in chapters {
        page.push_str(&settings(config)?);
        for comparison in *comparisons {
            page.push_str(&section(comparison, &pictures)?);
        }
    }
    let path = folder.join(PAGE);
    write_atomically(&path, |file| file.write_all(page.as_bytes()))?;
    Ok(path)
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

/// The table and the pictures of a comparison.
fn section(comparison: &Comparison, pictures: &Path) -> Result<String, Error> {
    let mut text = format!("\n## {}\n\n{}", capitalized(&comparison.name), table(&comparison.runs));
    let stem = file_stem(&comparison.name);
    let mut add = |kind: &str, about: &str, draw: &dyn Fn(&Path) -> Result<(), Error>| {
        let name = format!("{stem}-{kind}.png");
        draw(&pictures.join(&name))?;
        // Writing to a string cannot fail.
        let _ = write!(text, "\n![{about}]({PICTURES}/{name})\n");
        Ok::<_, Error>(())
    };
    add("batches", &format!("{}, batch by batch", comparison.name), &|path| batches(comparison).write(path))?;
    if let Some(trade_off) = trade_off(comparison) {
        add("trade-off", &format!("{}, accuracy against size", comparison.name), &|path| trade_off.write(path))?;
    }
    for (run, map) in comparison.runs.iter().filter_map(|run| Some((run, run.map.as_ref()?))) {
        let kind = format!("map-{}", file_stem(&run.method));
        add(&kind, &format!("Map of {}", run.method), &|path| write_map(comparison, run, map, path))?;
    }
    Ok(text)
}

/// Every method after its last batch.
fn table(runs: &[Run]) -> String {
    let mut text = "| method | batches | M | RMSE | NLPD | coverage | evaluations | seconds |\n\
                    |---|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    // Writing to a string cannot fail.
    for run in runs {
        let Some(BatchResult { batch, inducing_points, rmse, nlpd, coverage, .. }) = run.steps.last() else { continue };
        let (evaluations, seconds) = (run.steps.iter().map(|step| step.evaluations).sum::<usize>(), run.seconds());
        let _ = write!(text, "| {} | {batch} | {inducing_points} | {rmse:.3} | {nlpd:.3} | {coverage:.3} ", run.method);
        let _ = writeln!(text, "| {evaluations} | {seconds:.2} |");
    }
    for run in runs {
        if run.capped() > 0 {
            let _ = writeln!(text, "\n`{}` met the cap on inducing points in {} batches.", run.method, run.capped());
        }
        if let Some(rejected) = &run.rejected {
            let _ = writeln!(text, "\n`{}` ended early: {rejected}.", run.method);
        }
    }
    text
}

/// Size, errors and time of every method, batch by batch.
fn batches(comparison: &Comparison) -> Charts<'_> {
    let curves = |value: &dyn Fn(&BatchResult) -> f64| -> Vec<Curve> {
        let curve = |run: &Run| Curve {
            name: run.method.clone(),
            points: run.steps.iter().map(|step| (step.batch as f64, value(step))).collect(),
        };
        comparison.runs.iter().map(curve).collect()
    };
    let chart = |quantity, scale, value: &dyn Fn(&BatchResult) -> f64| Chart { quantity, scale, curves: curves(value) };
    Charts {
        title: capitalized(&comparison.name),
        across: ("batch", AxisScale::Linear),
        charts: vec![
            chart("inducing points", AxisScale::Logarithmic, &|step| step.inducing_points as f64),
            chart(rmse_with_unit(comparison), AxisScale::Linear, &|step| step.rmse),
            chart("NLPD", AxisScale::Linear, &|step| step.nlpd),
            chart("seconds per batch", AxisScale::Logarithmic, &|step| step.seconds),
        ],
    }
}

fn rmse_with_unit(comparison: &Comparison) -> &'static str {
    if comparison.task.is_map { "RMSE (µT)" } else { "RMSE" }
}

/// Errors against size: a curve per method through its parameters; none where no method has inducing points.
fn trade_off(comparison: &Comparison) -> Option<Charts<'_>> {
    let mut runs: Vec<(&str, &BatchResult)> = Vec::new();
    for run in &comparison.runs {
        let name = run.method.split_once('=').map_or(run.method.as_str(), |(name, _)| name);
        runs.extend(run.steps.last().filter(|last| last.inducing_points > 0).map(|last| (name, last)));
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in &runs {
        if !names.contains(name) {
            names.push(name);
        }
    }
    runs.sort_by_key(|(_, last)| last.inducing_points);
    let chart = |quantity, value: &dyn Fn(&BatchResult) -> f64| {
        let curve = |name: &&str| {
            let of_method = runs.iter().filter(|(of, _)| of == name);
            let points = of_method.map(|(_, last)| (last.inducing_points as f64, value(last))).collect();
            Curve { name: (*name).to_owned(), points }
        };
        Chart { quantity, scale: AxisScale::Linear, curves: names.iter().map(curve).collect() }
    };
    (!runs.is_empty()).then(|| Charts {
        title: format!("{}: accuracy against size", capitalized(&comparison.name)),
        across: ("inducing points", AxisScale::Logarithmic),
        charts: vec![chart(rmse_with_unit(comparison), &|step| step.rmse), chart("NLPD", &|step| step.nlpd)],
    })
}

fn write_map(comparison: &Comparison, run: &Run, map: &FinalMap, path: &Path) -> Result<(), Error> {
    MapPicture {
        grid: &map.grid,
        path: &map.path,
        inducing_points: &map.inducing_points,
        changes: &[],
        prior_standard_deviation: map.prior_standard_deviation,
        title: &format!("{}: {}", capitalized(&comparison.name), run.method),
        subtitle: None,
    }
    .write_mean(path)
}

/// A name as the first word of a sentence.
fn capitalized(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A name that every file system accepts.
fn file_stem(name: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || ".-_".contains(letter);
    let words = name.split(|letter| !is_plain(letter)).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::Task;
    use crate::metrics::Readings;
    use std::fs;

    /// A wave in the plane, in three batches.
    fn task() -> Task {
        let reading = |i: usize| {
            let (x, y) = (0.1 * (i % 30) as f64, 0.3 * (i / 30) as f64);
            ([x, y], 50.0 + 8.0 * (2.0 * x).sin() * (1.5 * y).cos())
        };
        let batch = |number: usize| -> Readings { (60 * number..60 * (number + 1)).map(reading).collect() };
        Task { is_map: true, ..Task::new((0..3).map(batch).collect(), (0..180).step_by(7).map(reading).collect()) }
    }

    #[test]
    fn a_page_holds_what_was_found_and_every_picture_it_names() {
        let (config, task) = (Config::default(), task());
        let run = |method: &str| {
            let mut map = None;
            let run = task.run(&method.parse().unwrap(), &config, |batch, learner| {
                map = task.final_map(batch, learner, &config);
            });
            Run { map, ..run }
        };
        let runs: Vec<Run> = ["vips=0.1", "vips=0.5", "mean"].map(run).into();
        assert!(runs[2].map.is_none(), "a mean has no map");
        let sizes: Vec<usize> = runs.iter().map(|run| run.steps.last().unwrap().inducing_points).collect();
        let comparisons = [Comparison { name: "a wave".into(), task, runs }];
        let folder = tempfile::tempdir().unwrap();
        let mut changed = config.clone();
        changed.apply_overrides(&["selection.delta=0.2"]).unwrap();
        let chapter = |config| Chapter { config, comparisons: &comparisons };
        let page = write(folder.path(), "Results", "Made by a test.", &[chapter(&config), chapter(&changed)]).unwrap();

        let text = fs::read_to_string(page).unwrap();
        assert!(text.starts_with("# Results\n\nMade by a test.\n\nSettings: the defaults.\n"), "{text}");
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
        let comparison = Comparison { name: "a wave".into(), task, runs };
        let charts = trade_off(&comparison).unwrap().charts;
        let last = |run: usize| comparison.runs[run].steps.last().unwrap();
        let point = |run: usize| (last(run).inducing_points as f64, last(run).nlpd);
        let curves: Vec<(&str, &[(f64, f64)])> =
            charts[1].curves.iter().map(|curve| (curve.name.as_str(), curve.points.as_slice())).collect();
        assert_eq!(curves, [("vips", &[point(2), point(0)][..]), ("oips", &[point(3)][..])]);
        assert!(point(2).0 < point(0).0);
    }
}
