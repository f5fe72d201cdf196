//! Layers of the library: `src/lib.rs` lists its modules from the inside out, and none uses one that is listed after it.

use std::fs;
use std::path::Path;

const LIBRARY: &str = include_str!("../src/lib.rs");

/// The names between backquotes of the entries of the list, in its order.
fn listed() -> Vec<&'static str> {
    let entries = LIBRARY.lines().filter_map(|line| line.strip_prefix("//! * ")?.split_once(": "));
    entries.flat_map(|(names, _)| names.split('`').skip(1).step_by(2)).collect()
}

/// Calls `see` with each file of the library below a folder, and its text without tests.
fn walk(folder: &Path, see: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, see);
        } else if !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            see(&path, text.split("#[cfg(test)]\nmod tests").next().unwrap());
        }
    }
}

/// The modules that a text uses by `crate::NAME`, comments aside.
fn used(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let paths = code.flat_map(|line| line.split("crate::").skip(1));
    paths.map(|path| path.chars().take_while(|next| next.is_alphanumeric() || *next == '_').collect()).collect()
}

#[test]
fn no_module_uses_one_that_is_further_outside() {
    let (listed, source) = (listed(), Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let declared = LIBRARY.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let [mut declared, mut sorted] = [declared.collect::<Vec<_>>(), listed.clone()];
    declared.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(sorted, declared, "each module is listed once");
    let floor = |module: &str| listed.iter().position(|other| *other == module);
    let (mut compared, mut outward) = (0, Vec::new());
    walk(&source, &mut |path, text| {
        let inside = path.strip_prefix(&source).unwrap().iter().next().unwrap().to_str().unwrap();
        // The programs use the library from outside.
        let Some(of_file) = floor(inside.trim_end_matches(".rs")) else { return };
        assert!(
            !text.contains("use crate::{"),
            "{}: a line for each module, or they are not seen here",
            path.display()
        );
        for module in used(text) {
            let Some(of_used) = floor(&module) else { continue };
            compared += 1;
            if of_used > of_file {
                outward.push(format!("{}: {module}", path.display()));
            }
        }
    });
    assert!(compared > 100, "{compared}");
    assert!(outward.is_empty(), "{outward:#?}");
}
