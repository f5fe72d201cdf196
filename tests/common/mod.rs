//! What several test files share.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder of reference material that is not part of the repository: `variable` names it, or it lies beside the checkout.
/// Says so when it is nowhere.
pub fn reference_folder(variable: &str, beside: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(variable)
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(beside));
    if folder.is_dir() {
        return Some(folder);
    }
    // Written past the test runner, which keeps to itself what a passing test prints.
    let line = format!("SKIPPED: no folder {} (set {variable} to run this test)\n", folder.display());
    let _ = std::io::stderr().write_all(line.as_bytes());
    None
}

/// The folder of the Aalto drives.
pub fn aalto_folder() -> Option<PathBuf> {
    reference_folder("MAGMAP_DATA", "data/aalto-magnetic")
}
