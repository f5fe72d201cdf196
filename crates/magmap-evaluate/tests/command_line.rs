//! The built program, as a user meets it: exit codes, outputs, messages.

#[path = "../../magmap-tools/tests/common/mod.rs"]
mod common;

use std::fs;

use common::json;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

/// Runs, and checks the exit code; what was written to stdout and to stderr.
#[track_caller]
fn expect(code: i32, arguments: &[&str], folder: &TempDir) -> (String, String) {
    common::expect(code, common::command(env!("CARGO_BIN_EXE_magmap-evaluate"), arguments, folder.path()))
}

#[test]
fn a_wrong_command_line_is_2_and_says_what_is_expected() {
    let folder = tempdir().unwrap();
    for (arguments, expected) in [
        (&["stream", "--data", "x", "--method", "gp"][..], "exact, batch_sparse, mean"),
        (&["growth", "--points", "10", "--batches", "11"], "no more than --points (10), found 11"),
        (&["table", "--data", "x.csv", "--test-share", "1"], "between 0 and 1"),
        (&["table"], "--data"),
        (&["worlds", "--set", "selection.dleta=0.1"], "selection.delta"),
        (&["stream", "--data", "x", "--method", "vips", "--set", "model.field=vector"], "found vector"),
        (&["stream", "--data", "x", "--hard-iron", "15"], "two numbers"),
    ] {
        let (out, err) = expect(2, arguments, &folder);
        assert!(err.contains(expected) && out.is_empty(), "{arguments:?}: {err}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was written");
}

#[test]
fn crescents_are_classified_batch_by_batch() {
    let folder = tempdir().unwrap();
    let arguments = ["banana", "--points", "120", "--test-points", "500", "--batches", "3", "--json", "scores.json"];
    let (out, _) = expect(0, &arguments, &folder);
    assert_eq!(out.lines().count(), 1 + 3 + 1, "{out}");
    let scores = json(&folder.path().join("scores.json"));
    let error = |scores: &Value| scores["error_rate"].as_f64().unwrap();
    let (last, whole) = (error(&scores["batches"][2]), error(&scores["whole"]));
    // A share of 500 has a standard deviation of 0.012, here and there the same test points.
    assert!(last < 0.1 && last < whole + 0.03, "{last} {whole}");
}

#[test]
fn memory_that_matrices_leave_is_used_again() {
    let folder = tempdir().unwrap();
    let settings = ["model.field=vector", "tiles.size=4", "tiles.threads=2", "raster.resolution=0.2"];
    let settings = settings.map(|setting| ["--set", setting]).concat();
    // Linux alone reports it.
    let resident = |run: usize| {
        let file = format!("scores-{run}.json");
        expect(0, &[&["hall", "--side", "12", "--json", &file], &settings[..]].concat(), &folder);
        let megabytes = json(&folder.path().join(file))["resident_mb"].as_f64();
        assert_eq!(megabytes.is_some(), cfg!(target_os = "linux"));
        megabytes.unwrap_or_default()
    };
    // 30 MB of tiles, the program and its threads, whose share changes from run to run; 76 MB and more where holes remain, as with the
    // allocator of glibc.
    assert!((0..4).any(|run| resident(run) < 65.0));
}

#[test]
fn experiments_show_a_row_per_method_and_write_every_batch() {
    let folder = tempdir().unwrap();
    let arguments = ["scenarios", "--method", "vips=0.05", "--method", "mean", "--json", "all.json"];
    let (table, err) = expect(0, &arguments, &folder);
    assert!(err.is_empty(), "{err}");
    let all = json(&folder.path().join("all.json"));
    assert_eq!(all["config"]["learning"]["prior"], false);
    let names: Vec<&Value> =
        all["comparisons"].as_array().unwrap().iter().map(|comparison| &comparison["name"]).collect();
    assert_eq!(names, ["expanding", "shuffled", "outliers"]);
    for comparison in all["comparisons"].as_array().unwrap() {
        assert!(table.contains(comparison["name"].as_str().unwrap()));
        assert_eq!(comparison["runs"][0]["method"], "vips=0.05");
        assert_eq!(comparison["runs"][0]["steps"].as_array().unwrap().len(), 10);
    }
    // --set takes precedence over the settings of the experiment, and the same flags give the same numbers.
    let sizes = |more: &[&str]| {
        let arguments = ["sizes", "--method", "fixed=12", "--json", "sizes.json"];
        expect(0, &[&arguments[..], more].concat(), &folder);
        let sizes = json(&folder.path().join("sizes.json"));
        (sizes["config"]["learning"].clone(), sizes["comparisons"][0]["runs"][0]["steps"][3]["rmse"].clone())
    };
    let (first, again, kept) = (sizes(&[]), sizes(&[]), sizes(&["--set", "learning.max_evaluations=0"]));
    assert_eq!(first, again);
    assert_eq!((&kept.0["max_evaluations"], &kept.0["prior"]), (&0.into(), &false.into()));
    assert_ne!(first.1, kept.1);
}

#[test]
fn corrected_paths_become_a_page_with_the_worst_one() {
    let folder = tempdir().unwrap();
    let arguments = ["slam", "--data", ".", "--world", "hall", "--length", "40", "--seeds", "2"];
    let (table, err) = expect(0, &[&arguments[..], &["--json", "rows.json", "--output", "page"]].concat(), &folder);
    assert!(err.is_empty(), "{err}");
    let rows = json(&folder.path().join("rows.json"));
    let of = |error: &str| [0, 1].map(|seed| rows[seed][error].as_f64().unwrap());
    let (smoothed, up_to_scale) = (of("smoothed"), of("up_to_scale"));
    assert!(
        (0..2).all(|seed| 0.0 < up_to_scale[seed] && up_to_scale[seed] < smoothed[seed]),
        "{up_to_scale:?} {smoothed:?}"
    );
    let page = fs::read_to_string(folder.path().join("page/results.md")).unwrap();
    let worst = if smoothed[1] > smoothed[0] { 1 } else { 0 };
    assert!(page.contains(&format!("*Seed {worst}, the worst: ")), "{page}");
    let median = format!("{:.3}", 0.5 * (smoothed[0] + smoothed[1]));
    let medians = page.lines().find(|line| line.starts_with("| median |")).unwrap();
    assert_eq!(medians.split('|').nth(4).unwrap().trim(), median);
    assert!(table.lines().last().unwrap().ends_with("results.md"), "{table}");
    assert!(fs::read(folder.path().join("page/hall-0.01.png")).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn an_experiment_on_a_table_is_the_same_with_any_number_of_jobs() {
    let folder = tempdir().unwrap();
    let row =
        |i: u32| format!("{},{}\n", f64::from(i) * 0.05, (f64::from(i) * 0.1).sin() + 0.1 * f64::from(i * i).cos());
    let rows: String = (0..120).map(row).collect();
    fs::write(folder.path().join("wave.csv"), format!("x,y\n{rows}")).unwrap();
    let arguments = ["table", "--data", "wave.csv", "--batches", "3", "--splits", "2"];
    let two = [&arguments[..], &["--method", "vips=0.05", "--method", "vips=0.5"]].concat();
    let (table, _) = expect(0, &[&two[..], &["--jobs", "2"]].concat(), &folder);
    assert!(table.contains("120 rows of 1 inputs, target y; 108 rows in 3 batches, 12 tested, 2 splits"), "{table}");
    assert!(table.contains("smallest within 10 % of exact") && table.contains("RMSE  vips"), "{table}");
    let (again, _) = expect(0, &[&two[..], &["--jobs", "1"]].concat(), &folder);
    // Seconds are in the last column.
    let timeless = |table: &str| -> Vec<String> {
        table.lines().map(|line| line.rsplit_once('|').map_or(line, |(before, _)| before).to_owned()).collect()
    };
    assert_eq!(timeless(&table), timeless(&again));
    expect(0, &[&two[..], &["--json", "all.json"]].concat(), &folder);
    let all = json(&folder.path().join("all.json"));
    assert_eq!((&all["comparisons"][1]["name"], &all["protocol"]["batches"]), (&"split 2".into(), &3.into()));
    assert_eq!(all["summary"]["methods"][1]["rmse_percent"]["mean"], 100.0);

    let (_, err) = expect(2, &[&two[..], &["--reference", "mean"]].concat(), &folder);
    assert!(err.contains("--reference"), "{err}");
    let (_, err) = expect(1, &[&two[..], &["--target", "z"]].concat(), &folder);
    assert!(err.contains("wave.csv: expected a target among x, y"), "{err}");
    fs::write(folder.path().join("wave.csv"), format!("x,y\n{rows}1,?\n")).unwrap();
    let (_, err) = expect(1, &two, &folder);
    assert!(err.contains("wave.csv, line 122, column 2: expected a number, found \"?\""), "{err}");
}
