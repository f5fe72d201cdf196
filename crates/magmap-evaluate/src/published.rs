//! Figures that the papers report on the Aalto drives, for comparison with our own.

use super::comparison::{BatchResult, Comparison};
use std::fmt::Write;

/// Figures of a paper at one point of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The paper, and the place in it.
    pub source: &'static str,
    /// The paper's name of the method.
    pub name: &'static str,
    /// The method and its first parameter, as in [`methods`](super::methods).
    pub method: &'static str,
    /// Whether the readings were shuffled before they were cut into batches.
    pub is_shuffled: bool,
    /// After which batch, counted from one.
    pub batch: usize,
    /// Number of inducing points.
    pub inducing_points: Option<usize>,
    /// Root mean squared error, in microtesla, where it is stated.
    pub rmse: Option<f64>,
}

/// All published figures: drive 3 in twenty batches, tested on drives 1, 2, 4 and 5.
pub fn published() -> Vec<Published> {
    let recorded = |[source, name, method]: [&'static str; 3], sizes: [usize; 5], error| {
        let batches = [1, 5, 10, 15, 20].into_iter().zip(sizes);
        let at = |(batch, size)| {
            let rmse = (batch == 20).then_some(error);
            Published { source, name, method, is_shuffled: false, batch, inducing_points: Some(size), rmse }
        };
        batches.map(at).collect::<Vec<_>>()
    };
    let shuffled = |[source, name, method]: [&'static str; 3], errors: [f64; 4]| {
        let batches = [5, 10, 15, 20].into_iter().zip(errors.map(Some));
        let at =
            |(batch, rmse)| Published { source, name, method, is_shuffled: true, batch, inducing_points: None, rmse };
        batches.map(at).collect::<Vec<_>>()
    };
    [
        recorded(["VIPS (2025), figure 8", "VIPS", "vips=0.095"], [5, 32, 66, 101, 134], 7.55),
        recorded(["VIPS (2025), figure 12", "OIPS", "oips=0.93"], [10, 27, 43, 59, 76], 9.42),
        recorded(
            ["VIPS (2025), figure 10", "Conditional variance", "conditional_variance=0.005"],
            [12, 597, 2206, 4071, 5785],
            10.66,
        ),
        shuffled(["Dual memory (2023), figure 5", "Dual memory", "dual_memory=100"], [7.79, 7.75, 7.40, 7.38]),
        shuffled(["Dual memory (2023), figure 5", "Bui et al. (2017)", "fixed=100"], [8.31, 10.9, 9.90, 9.79]),
    ]
    .concat()
}

/// Our runs on the same batches, and on shuffled readings.
#[derive(Clone, Copy, Debug)]
pub struct Ours<'a> {
    /// Heading of the columns.
    pub name: &'a str,
    /// In the order of the drive.
    pub recorded: &'a Comparison,
    /// In a random order.
    pub shuffled: &'a Comparison,
}

/// A table in Markdown: every published figure with our own beside it.
pub fn table(ours: &[Ours<'_>]) -> String {
    let mut text = "| source | method | batch | M | RMSE |".to_owned();
    // Writing to a string cannot fail.
    for Ours { name, .. } in ours {
        let _ = write!(text, " M, {name} | RMSE, {name} |");
    }
    text.push_str("\n|---|---|---:|---:|---:|");
    text.push_str(&"---:|---:|".repeat(ours.len()));
    text.push('\n');
    let whole = |value: Option<usize>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let error = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    for figure in published() {
        let Published { source, name, batch, inducing_points, rmse, .. } = figure;
        let _ = write!(text, "| {source} | {name} | {batch} | {} | {} |", whole(inducing_points), error(rmse));
        for ours in ours {
            let step = step(&figure, ours);
            let size = whole(step.map(|step| step.inducing_points));
            let _ = write!(text, " {size} | {} |", error(step.map(|step| step.rmse)));
        }
        text.push('\n');
    }
    text
}

/// The result of our own run of the method after the same batch.
fn step<'a>(figure: &Published, ours: &Ours<'a>) -> Option<&'a BatchResult> {
    let comparison = if figure.is_shuffled { ours.shuffled } else { ours.recorded };
    let run = comparison.runs.iter().find(|run| run.method.split(',').next() == Some(figure.method))?;
    run.steps.iter().find(|step| step.batch == figure.batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::{Run, Task};
    use crate::methods::Method;

    #[test]
    fn every_published_method_is_one_of_ours() {
        let figures = published();
        assert_eq!(figures.len(), 23);
        for figure in figures {
            let method: Method = figure.method.parse().unwrap();
            assert_eq!(method.to_string(), figure.method);
        }
    }

    #[test]
    fn our_figures_stand_in_the_row_of_the_same_method_batch_and_order() {
        let step = |batch: usize, inducing_points, rmse| BatchResult {
            batch,
            inducing_points,
            rmse,
            nlpd: 0.0,
            coverage: 0.0,
            hyperparameters: Vec::new(),
            evaluations: 0,
            selection_end: None,
            seconds: 0.0,
        };
        let comparison = |method: &str, steps| {
            let nothing = std::iter::empty::<([f64; 2], f64)>().collect();
            let run = Run { method: method.into(), steps, rejected: None, map: None };
            Comparison { name: String::new(), task: Task::new(Vec::new(), nothing), runs: vec![run] }
        };
        let recorded = comparison("vips=0.095", vec![step(1, 4, 9.0), step(20, 111, 7.123)]);
        let shuffled = comparison("fixed=100", vec![step(5, 99, 8.456)]);
        let text = table(&[Ours { name: "here", recorded: &recorded, shuffled: &shuffled }]);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[0], "| source | method | batch | M | RMSE | M, here | RMSE, here |");
        assert_eq!(rows[2], "| VIPS (2025), figure 8 | VIPS | 1 | 5 | - | 4 | 9.00 |");
        assert_eq!(rows[3], "| VIPS (2025), figure 8 | VIPS | 5 | 32 | - | - | - |");
        assert_eq!(rows[6], "| VIPS (2025), figure 8 | VIPS | 20 | 134 | 7.55 | 111 | 7.12 |");
        assert_eq!(rows[21], "| Dual memory (2023), figure 5 | Bui et al. (2017) | 5 | - | 8.31 | 99 | 8.46 |");
    }
}
