//! Dependencies of the nodes: CONTRIBUTING.md gives a reason for each crate that the package at the root names.

use std::collections::BTreeSet;

use toml::Table;

const MANIFEST: &str = include_str!("../Cargo.toml");
const CONTRIBUTING: &str = include_str!("../CONTRIBUTING.md");

/// The names of crates in a section of the manifest.
fn names(manifest: &Table, section: &str) -> BTreeSet<String> {
    manifest[section].as_table().unwrap().keys().cloned().collect()
}

#[test]
fn every_dependency_has_a_reason_and_none_is_listed_that_is_not_there() {
    let manifest: Table = MANIFEST.parse().unwrap();
    let (_, list) = CONTRIBUTING.split_once("### Dependencies of the nodes\n").unwrap();
    let list = list.split("\n#").next().unwrap();
    let rows = list.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "));
    let reasons: Vec<(&str, &str)> = rows.collect();
    assert!(reasons.iter().all(|(_, reason)| reason.split_whitespace().count() > 2), "{reasons:?}");
    let listed: Vec<String> = reasons.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(listed, Vec::from_iter(names(&manifest, "dependencies")), "in the order of the alphabet, each once");
}

#[test]
fn nothing_of_the_program_or_the_laboratory_is_used_not_even_by_tests() {
    let manifest: Table = MANIFEST.parse().unwrap();
    for section in ["dependencies", "dev-dependencies"] {
        for crate_of_its_own in ["magmap-tools", "magmap-evaluate"] {
            assert!(!names(&manifest, section).contains(crate_of_its_own), "{section}: {crate_of_its_own}");
        }
    }
}
